"""Refuses sampling parameters that would hold up or end a target's engine.

xgrammar follows a schema by recursion, also through its references and into the patterns of its texts: with about
9,000 levels the process dies of a full stack, and one schema of 2,000 levels takes more than a minute.
"""

import json
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import re2

from router.options.nesting import MAX_DEPTH, too_deep
from skim_common.errors import InvalidRequestError

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

MAX_LEVELS = 2 * MAX_DEPTH
"""Of lists and objects in one schema: a body's, and what vLLM puts around the schemas of tools."""

MAX_REFERRED_LEVELS = 8000
"""Of all that a schema refers to, one after the other."""

MAX_GROUPS = 1000
"""Parentheses inside each other. xgrammar itself has this limit for regular expressions and grammars."""

_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
_JSON = ("json", "structural_tag")
_REFERENCE = re2.compile(r'"\$ref": "((?:[^"\\]|\\.)*)"')
_STEPS = np.zeros(256, np.int8)
_STEPS[ord("(")], _STEPS[ord(")")] = 1, -1


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for parameters over these limits. sampling: as in GenerateRequest."""
    for name, most in MAX_ENTRIES.items():
        _check_entries(name, sampling, most)
    if sampling.get("min_tokens"):
        _check_entries("stop_token_ids", sampling, MAX_STOP_TOKEN_IDS, " beside min_tokens")
    seed = sampling.get("seed")
    if isinstance(seed, int) and seed not in SEEDS:
        raise InvalidRequestError(f"seed is {seed}, but must be from {SEEDS[0]} to {SEEDS[-1]}")
    constraints = sampling.get("structured_outputs")
    for name, value in constraints.items() if isinstance(constraints, Mapping) else ():
        if isinstance(value, str | dict):
            _check_depth(name, value)
            if name in _JSON:
                _check_counts(value)


def first_logprobs(prompt_tokens: int, sampling: Mapping[str, Any], vocab_size: int) -> int:
    """How many log probabilities a reply has after one token of each answer: those of the prompt, and of this token.

    Raises InvalidRequestError for more answers than the prompt may have.
    """
    n = sampling.get("n") or 1
    if type(n) is not int:
        return 0
    if n * prompt_tokens > MAX_READ_TOKENS:
        raise InvalidRequestError(
            f"n is {n} and the prompt has {prompt_tokens} tokens, together {n * prompt_tokens}, but a request may have "
            f"{MAX_READ_TOKENS}; ask for fewer answers at a time"
        )
    names = ("prompt_logprobs", "logprobs", "logprob_token_ids")
    prompt, top, ids = (_candidates(sampling.get(name), vocab_size) for name in names)
    return int(n * (prompt * prompt_tokens + max(top, ids)))


def check_reply_size(logprobs: int) -> None:
    """Raise InvalidRequestError if a reply would have so many log probabilities."""
    if logprobs > MAX_LOGPROBS:
        raise InvalidRequestError(
            f"the reply would have {logprobs} log probabilities or more, but the limit is {MAX_LOGPROBS}: lower "
            "prompt_logprobs, logprobs, n or max_tokens, or shorten the prompt"
        )


def _candidates(value: Any, vocab_size: int) -> int:
    """Log probabilities for each token. The token itself may be an additional one."""
    count = len(value) if isinstance(value, Sequence) else value
    return (vocab_size if count == -1 else count) + 1 if type(count) is int else 0


def _check_entries(name: str, sampling: Mapping[str, Any], most: int, beside: str = "") -> None:
    value = sampling.get(name)
    if isinstance(value, Sized) and len(value) > most:
        raise InvalidRequestError(f"{name} has {len(value)} entries, but the limit is {most}{beside}; leave some out")


def _check_depth(name: str, value: str | dict[str, Any]) -> None:
    """Refuse a schema, a grammar or a regular expression that is nested too deeply."""
    text, said = str(value), f"structured_outputs.{name}"
    if name in _JSON:
        if isinstance(value, str) and too_deep(value.encode("utf-8", "replace"), MAX_LEVELS):
            raise InvalidRequestError(f"{said} has more than {MAX_LEVELS} levels of lists and objects; flatten it")
        with suppress(ValueError):  # text that is no JSON stays: vLLM refuses it
            # In one form, without escapes in its names.
            text = json.dumps(json.loads(value) if isinstance(value, str) else value)
        levels = MAX_REFERRED_LEVELS // max(1, len(set(_REFERENCE.findall(text))))
        if too_deep(text.encode("utf-8", "replace"), min(MAX_LEVELS, levels)):
            raise InvalidRequestError(f"{said} has too many references ($ref) for its depth; write it without them")
    if text.count("(") > MAX_GROUPS:
        open_groups = np.cumsum(_STEPS[np.frombuffer(text.encode("utf-8", "replace"), np.uint8)], dtype=np.int64)
        if (open_groups - np.minimum(np.minimum.accumulate(open_groups), 0)).max() > MAX_GROUPS:
            raise InvalidRequestError(f"{said} has more than {MAX_GROUPS} parentheses inside each other; flatten it")


def _check_counts(schema: str | dict[str, Any]) -> None:
    """Refuse counts for which a backend would build more than it can hold."""
    left: list[Any] = [schema]
    if isinstance(schema, str):
        with suppress(ValueError):  # vLLM says what is wrong with it
            left = [json.loads(schema)]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, Mapping):
            left += part.values()
            for name in _COUNTS:
                if isinstance(count := part.get(name), int | float) and count > MAX_SCHEMA_COUNT:
                    raise InvalidRequestError(
                        f"{name} of a schema is {count}, and may be {MAX_SCHEMA_COUNT}: lower it, or leave it out"
                    )
