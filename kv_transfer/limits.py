"""The lengths and ids of a request to each pool, which the router and the pool both check.

An engine does not find these mistakes itself: vLLM sees only the shortened prompt, and rotary embeddings beyond the
model's positions are wrong without an error.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import DELTA, GenerateRequest
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo

RESERVED_PREFIX = "skim"
"""The names of Skim's own extra arguments begin with this prefix."""

KvRole = Literal["prefill", "decode"]
"""The halves of a split target."""


def check_tokens(token_ids: Int32Array, vocab_size: int) -> None:
    """Raise InvalidRequestError for a prompt without tokens or with ids from `vocab_size` on."""
    if not token_ids.size:
        raise InvalidRequestError("the prompt is empty: a selection needs at least one token")
    check_ids(token_ids, vocab_size)


def check_ids(token_ids: Int32Array, vocab_size: int, model: str = "speculator") -> None:
    """Raise InvalidRequestError unless all token ids are in [0, vocab_size)."""
    wrong = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if wrong.size:
        raise InvalidRequestError(f"Token id {wrong[0]} is out of vocabulary: the {model} has {vocab_size} ids")


def check_speculator_length(
    prompt_tokens: int, look_ahead: int, info: ModelInfo, advice: str = "shorten the prompt or lower look_ahead"
) -> None:
    """Raise InvalidRequestError if the prompt and the look-ahead exceed what the model reads. advice: what to do."""
    limit = min(info.max_model_len, info.max_position)
    if prompt_tokens + look_ahead > limit:
        raise InvalidRequestError(
            f"the prompt has {prompt_tokens} tokens and look_ahead is {look_ahead}, but the speculator reads at most "
            f"{limit}; {advice}"
        )


def check_request(request: GenerateRequest, info: ModelInfo, *, default_max_tokens: int = 16) -> int:
    """Check a request to a target and return its max_tokens; None means as many as the model has room for.

    default_max_tokens: as in vllm.SamplingParams. Raises InvalidRequestError.
    """
    prompt, sampling = request.prompt, request.sampling
    kept, context = int(prompt.token_ids.size), prompt.context_length
    check_ids(prompt.token_ids, info.vocab_size, "target")
    extra_args = sampling.get("extra_args") or {}
    if not isinstance(extra_args, Mapping):
        raise InvalidRequestError("extra_args must be a mapping from names to values")
    if reserved := reserved_names(map(str, extra_args)):
        raise InvalidRequestError(f"extra argument {reserved[0]!r} is reserved for the server; leave it out")
    if not prompt.is_dense and (request.scored or sampling.get("prompt_logprobs") is not None):
        raise InvalidRequestError("prompt_logprobs needs the whole prompt: send the request dense")
    max_tokens, answered = sampling.get("max_tokens", default_max_tokens), request.answered
    if max_tokens is None:
        max_tokens = max(min(info.max_position - context, info.max_model_len - kept) + answered, 1)
    if type(max_tokens) is not int or max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be a whole number from 1 on, not {max_tokens!r}")
    check_target_length(context - answered, kept - answered, max_tokens, info)
    if answered >= max_tokens:
        raise InvalidRequestError(f"an answer of at most {max_tokens} tokens has {answered} tokens already")
    whole = sampling.get("n", 1) == 1 and sampling.get("prompt_logprobs") is None
    if answered and not (whole and sampling.get("output_kind", DELTA) == DELTA):
        raise InvalidRequestError("an answer can be continued for n = 1, without prompt_logprobs and with DELTA only")
    return max_tokens


def check_target_length(prompt_tokens: int, kept_tokens: int, max_tokens: int, info: ModelInfo) -> None:
    """Raise InvalidRequestError, with all numbers, unless prompt and answer fit the model: positions reach
    prompt_tokens + max_tokens even if tokens are dropped, and the KV cache holds kept_tokens + max_tokens."""
    held = "prompt" if kept_tokens == prompt_tokens else "kept prompt"
    for what, tokens, limit, name in (
        ("prompt", prompt_tokens, info.max_position, "max_position_embeddings (with RoPE scaling)"),
        (held, kept_tokens, info.max_model_len, "max_model_len"),
    ):
        if tokens + max_tokens > limit:
            raise InvalidRequestError(
                f"the {what} has {tokens} tokens and max_tokens is {max_tokens}, together {tokens + max_tokens}, "
                f"but the target's {name} is {limit}; shorten the prompt or ask for fewer tokens"
            )


def reserved_names(names: Iterable[str]) -> list[str]:
    """The names that a client may not send in sampling `extra_args`: they would change positions or KV blocks."""
    transfers = "kv_transfer_params", "ec_transfer_params"
    return [name for name in names if name.startswith(RESERVED_PREFIX) or name in transfers]


def check_leg(request: GenerateRequest, role: KvRole | None) -> KvRole | None:
    """The request's leg of a split target; None for a complete request, which every engine accepts. Raises
    InvalidRequestError unless this engine is that half (`role`)."""
    leg: KvRole | None = "prefill" if request.prefill_only else "decode" if request.kv_blocks is not None else None
    if leg not in (None, role):
        half = f"the {role} half of a split one" if role else "not a split one"
        raise InvalidRequestError(f"this target is {half}: it cannot take a {leg} leg")
    return leg
