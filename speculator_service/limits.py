"""What a speculator refuses before its engine sees it: bad ids, bad spans, too long a prompt."""

from kv_transfer.errors import InvalidRequestError
from kv_transfer.messages import ModelInfo, SelectRequest


def check_request(request: SelectRequest, info: ModelInfo) -> None:
    """Raise InvalidRequestError unless the prompt, its spans and its length are ones that the model can take."""
    ids = request.token_ids
    if not ids.size:
        raise InvalidRequestError("the prompt is empty: a selection needs at least one token")
    if ids.min() < 0 or ids.max() >= info.vocab_size:
        wrong = int(ids[(ids < 0) | (ids >= info.vocab_size)][0])
        raise InvalidRequestError(f"token id {wrong} is outside the speculator's vocabulary [0, {info.vocab_size})")
    for start, end in request.protected_spans.tolist():
        if not 0 <= start <= end <= ids.size:
            raise InvalidRequestError(f"protected span ({start}, {end}) is not inside the prompt of {ids.size} tokens")
    check_length(int(ids.size), request.options.look_ahead, info)


def check_length(prompt: int, look_ahead: int, info: ModelInfo) -> None:
    """Raise InvalidRequestError if `prompt` tokens and the look-ahead are more than the model reads."""
    if prompt + look_ahead > info.max_model_len:
        raise InvalidRequestError(
            f"the prompt's {prompt} tokens and {look_ahead} look-ahead tokens exceed the speculator's limit of "
            f"{info.max_model_len}"
        )
