"""The checks of a request before it reaches a target engine.

An engine does not find these mistakes itself: vLLM sees only the shortened prompt, and rotary embeddings beyond the
model's positions are wrong without an error.
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, Literal

from kv_transfer.limits.grammar import check_grammar
from kv_transfer.messages import GenerateRequest
from kv_transfer.sampling import DELTA
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo

RESERVED_PREFIX = "skim"
"""The names of Skim's own extra arguments begin with this prefix."""

MAX_LOGPROBS = 2**19
"""Log probabilities in one reply: about 28 MB between target and router, and 40 MB of JSON."""

MAX_ENTRIES = {"allowed_token_ids": 1024, "bad_words": 128, "logit_bias": 1024, "logprob_token_ids": 128}
"""Entries of a sampling parameter for which vLLM's sampler on GPUs has room. With more, its engine would end."""

MAX_STOP_TOKEN_IDS = 96
"""Beside `min_tokens`. That sampler has room for 128, with the model's own end tokens."""

SEEDS = range(-(2**63), 2**63)
"""int64, in which the samplers hold a seed."""

MAX_READ_TOKENS = 2**23
"""Prompt tokens times n: each answer has a copy of the prompt in the engine, and the reply may repeat it for each."""

MAX_SCHEMA_COUNT = 2**16
"""Items that a schema may count to: vLLM's guidance backend holds 100 bytes for each, a gigabyte for ten million."""

SCHEMA_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")

KvRole = Literal["prefill", "decode"]
"""The halves of a split target."""


def check_request(request: GenerateRequest, info: ModelInfo, *, default_max_tokens: int = 16) -> int:
    """Check a request and return its max_tokens; `max_tokens: None` means as many as the model has room for.

    default_max_tokens: used if the request has no max_tokens (16 in vllm.SamplingParams).
    Raises InvalidRequestError.
    """
    _check_token_ids(request, info)
    _check_extra_args(request)
    check_sampling(request.sampling)
    check_reply_size(first_logprobs(int(request.prompt.token_ids.size), request.sampling, info.vocab_size))
    if not request.prompt.is_dense and (request.scored or request.sampling.get("prompt_logprobs") is not None):
        raise InvalidRequestError("prompt_logprobs needs the whole prompt: send the request dense")
    prompt, answer = request.prompt_and_answer()
    kept, context = prompt.token_ids.size, prompt.context_length
    room = min(info.max_position - context, info.max_model_len - kept)
    max_tokens = request.sampling.get("max_tokens", default_max_tokens)
    if max_tokens is None:
        max_tokens = max(room, 1)
    if type(max_tokens) is not int or max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be a whole number from 1 on, not {max_tokens!r}")
    check_length(context, kept, max_tokens, info)
    _check_entries("trace_decode_token_ids", request.sampling, max_tokens, ", max_tokens")
    if answer.size:
        _check_answered(request, max_tokens)
    return max_tokens


def _check_answered(request: GenerateRequest, max_tokens: int) -> None:
    if request.answered >= max_tokens:
        raise InvalidRequestError(f"an answer of at most {max_tokens} tokens has {request.answered} tokens already")
    sampling = request.sampling
    kind = sampling.get("output_kind", DELTA)
    if sampling.get("n", 1) != 1 or sampling.get("prompt_logprobs") is not None or kind != DELTA:
        raise InvalidRequestError("an answer can be continued for n = 1, without prompt_logprobs and with DELTA only")


def check_length(prompt_tokens: int, kept_tokens: int, max_tokens: int, info: ModelInfo) -> None:
    """Raise InvalidRequestError, with all numbers, unless prompt and answer fit the model.

    Positions reach prompt_tokens + max_tokens even if tokens are dropped. The KV cache holds kept_tokens + max_tokens.
    """
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


def first_logprobs(prompt_tokens: int, sampling: Mapping[str, Any], vocab_size: int) -> int:
    """How many log probabilities a reply has after one token of each answer: those of the prompt, and of this token.

    sampling: as in GenerateRequest. Raises InvalidRequestError for more answers than the prompt may have.
    """
    n = sampling.get("n") or 1
    if type(n) is int and n * prompt_tokens > MAX_READ_TOKENS:
        raise InvalidRequestError(
            f"n is {n} and the prompt has {prompt_tokens} tokens, together {n * prompt_tokens}, but a request may have "
            f"{MAX_READ_TOKENS}; ask for fewer answers at a time"
        )
    names = ("prompt_logprobs", "logprobs", "logprob_token_ids")
    of_prompt, top, ids = (_candidates(sampling.get(name), vocab_size) for name in names)
    return int(n * (of_prompt * prompt_tokens + max(top, ids))) if type(n) is int else 0


def _candidates(asked: Any, vocab_size: int) -> int:
    """Log probabilities for each token. The token itself may be an additional one."""
    if asked is None:
        return 0
    count = len(asked) if isinstance(asked, Sequence) else asked
    return (vocab_size if count == -1 else count) + 1 if type(count) is int else 0


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for parameters that would hold up or end an engine. sampling: as in GenerateRequest."""
    for name, most in MAX_ENTRIES.items():
        _check_entries(name, sampling, most)
    if sampling.get("min_tokens"):
        _check_entries("stop_token_ids", sampling, MAX_STOP_TOKEN_IDS, " beside min_tokens")
    seed = sampling.get("seed")
    if isinstance(seed, int) and seed not in SEEDS:
        raise InvalidRequestError(f"seed is {seed}, but must be from {SEEDS[0]} to {SEEDS[-1]}")
    check_grammar(sampling)
    _check_schema(sampling.get("structured_outputs"))


def _check_entries(name: str, sampling: Mapping[str, Any], most: int, beside: str = "") -> None:
    value = sampling.get(name)
    if isinstance(value, Sized) and len(value) > most:
        raise InvalidRequestError(f"{name} has {len(value)} entries, but the limit is {most}{beside}; leave some out")


def check_reply_size(logprobs: int) -> None:
    """Raise InvalidRequestError if a reply would have so many log probabilities."""
    if logprobs > MAX_LOGPROBS:
        raise InvalidRequestError(
            f"the reply would have {logprobs} log probabilities or more, but the limit is {MAX_LOGPROBS}: lower "
            "prompt_logprobs, logprobs, n or max_tokens, or shorten the prompt"
        )


def reserved_names(names: Iterable[str]) -> list[str]:
    """The names that a client may not send in sampling `extra_args`: they would change positions or KV blocks."""
    return [
        name
        for name in names
        if name.startswith(RESERVED_PREFIX) or name in ("kv_transfer_params", "ec_transfer_params")
    ]


def check_leg(request: GenerateRequest, role: KvRole | None) -> KvRole | None:
    """The request's leg of a split target; None for a complete request, which every engine accepts.

    role: the half that this engine is. Raises InvalidRequestError for a leg of the other half.
    """
    leg: KvRole | None = "prefill" if request.prefill_only else "decode" if request.kv_blocks is not None else None
    if leg not in (None, role):
        half = f"the {role} half of a split one" if role else "not a split one"
        raise InvalidRequestError(f"this target is {half}: it cannot take a {leg} leg")
    return leg


def _check_token_ids(request: GenerateRequest, info: ModelInfo) -> None:
    ids = request.prompt.token_ids
    outside = ids[(ids < 0) | (ids >= info.vocab_size)]
    if outside.size:
        raise InvalidRequestError(f"Token id {outside[0]} is out of vocabulary, which has {info.vocab_size} tokens")


def _check_schema(constraint: Any) -> None:
    """Refuse counts for which a backend would build more than it can hold. A schema may be JSON or its text."""
    left = [constraint]
    if isinstance(constraint, Mapping):
        for text in (constraint.get("json"), constraint.get("structural_tag")):
            with suppress(ValueError, RecursionError):  # vLLM says what is wrong with it
                left += [json.loads(text)] if isinstance(text, str) else []
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, Mapping):
            left += part.values()
            for name in SCHEMA_COUNTS:
                if isinstance(count := part.get(name), int | float) and count > MAX_SCHEMA_COUNT:
                    raise InvalidRequestError(
                        f"{name} of a schema is {count}, and may be {MAX_SCHEMA_COUNT}: lower it, or leave it out"
                    )


def _check_extra_args(request: GenerateRequest) -> None:
    extra_args = request.sampling.get("extra_args") or {}
    if not isinstance(extra_args, Mapping):
        raise InvalidRequestError("extra_args must be a mapping from names to values")
    if reserved := reserved_names(map(str, extra_args)):
        raise InvalidRequestError(f"extra argument {reserved[0]!r} is reserved for the server; leave it out")
