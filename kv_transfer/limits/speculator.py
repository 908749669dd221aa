"""What a speculator refuses before its engine sees it: wrong token ids, wrong spans, a prompt that is too long."""

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import asks_for_windows
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo

_SHORTER = "shorten the prompt or lower look_ahead"


def check_request(request: SelectRequest, info: ModelInfo) -> None:
    """Raise InvalidRequestError unless the model can take the prompt, its layout and its length."""
    if not request.token_ids.size:
        raise InvalidRequestError("the prompt is empty: a selection needs at least one token")
    check_ids(request.token_ids, info.vocab_size)
    check_readable(request, info)
    request.layout.check(request.size)


def check_prompt(token_ids: Int32Array, look_ahead: int, info: ModelInfo, vocab_size: int) -> None:
    """Raise InvalidRequestError for a prompt [M] that cannot be scored. vocab_size: ids below it are accepted."""
    if not token_ids.size:
        raise InvalidRequestError("the prompt is empty: a selection needs at least one token")
    check_ids(token_ids, vocab_size)
    check_length(int(token_ids.size), look_ahead, info)


def check_ids(token_ids: Int32Array, vocab_size: int) -> None:
    """Raise InvalidRequestError unless all token ids are in [0, vocab_size)."""
    wrong = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if wrong.size:
        raise InvalidRequestError(f"Token id {wrong[0]} is out of vocabulary: the speculator has {vocab_size} ids")


def check_readable(request: SelectRequest, info: ModelInfo, advice: str = _SHORTER) -> None:
    """`check_length` for a selection. The lexical selector and windows take a prompt of any length."""
    if request.options.selector != "lexical" and not asks_for_windows(request):
        check_length(int(request.token_ids.size), request.options.tokens_ahead, info, advice)


def check_length(prompt_tokens: int, look_ahead: int, info: ModelInfo, advice: str = _SHORTER) -> None:
    """Raise InvalidRequestError if the prompt and the look-ahead exceed what the model reads. advice: what to do."""
    limit = min(info.max_model_len, info.max_position)
    if prompt_tokens + look_ahead > limit:
        raise InvalidRequestError(
            f"the prompt has {prompt_tokens} tokens and look_ahead is {look_ahead}, but the speculator reads at most "
            f"{limit}; {advice}"
        )
