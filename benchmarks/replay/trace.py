"""Traces of requests in Mooncake's open format (kvcache-ai/Mooncake, FAST25-release/traces).

A trace is JSON lines: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (one id for each block
of 512 prompt tokens). Equal ids mean equal blocks after equal blocks, so requests share the longest common beginning of
their ids. A trace has no text: here each id stands for one block of `block_tokens` random tokens that follow from the
id, and lengths are scaled in the same way.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kv_transfer.messages import Int32Array
from skim_common.errors import SkimError

TRACE_BLOCK = 512
"""Prompt tokens for each id of a trace."""

CONVERSATION = Path(__file__).parents[1] / "traces" / "conversation.jsonl"
"""The bundled cut of Mooncake's conversation trace."""

_COPY = 2**40  # more than any id of a trace


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """at_s: seconds from the start of the trace. blocks: ids. prompt_tokens, answer_tokens: in tokens of the trace."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[TracedRequest]:
    """The requests of a trace file, in order of time. Raises SkimError for a file in another format."""
    requests = []
    try:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            ids = tuple(int(block) for block in row["hash_ids"])
            prompt, answer = int(row["input_length"]), int(row["output_length"])
            requests.append(TracedRequest(row["timestamp"] / 1e3, prompt, answer, ids))
    except OSError as error:
        raise SkimError(f"cannot read the trace {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SkimError(
            f"{path.name}, line {len(requests) + 1}: a trace has JSON lines with timestamp, input_length,"
            " output_length and hash_ids"
        ) from None
    if wrong := next(
        (r for r in requests if not 0 <= len(r.blocks) * TRACE_BLOCK - r.prompt_tokens < TRACE_BLOCK), None
    ):
        number = requests.index(wrong) + 1
        raise SkimError(f"{path.name}, line {number}: hash_ids must have one id for each {TRACE_BLOCK} prompt tokens")
    return sorted(requests, key=lambda request: request.at_s)


def conversations(requests: Sequence[TracedRequest]) -> list[list[TracedRequest]]:
    """The requests that share more than their first block, which may be a system prompt that all have. In order."""
    members: dict[tuple[int, ...], list[TracedRequest]] = defaultdict(list)
    for request in requests:
        members[request.blocks[:2]].append(request)
    return list(members.values())


def sample(requests: Sequence[TracedRequest], count: int, longest: int, seed: int) -> list[TracedRequest]:
    """At least `count` requests (all, if there are fewer): whole conversations, so that the sharing stays.

    longest: conversations with a longer prompt, in tokens of the trace, are left out.
    """
    chosen: list[TracedRequest] = []
    groups = [g for g in conversations(requests) if max(r.prompt_tokens for r in g) <= longest]
    for group in random.Random(seed).sample(groups, len(groups)):
        if len(chosen) >= count:
            break
        chosen += group
    if not chosen:
        raise SkimError(f"the trace has no conversation of prompts up to {longest} tokens of the trace")
    return sorted(chosen, key=lambda request: request.at_s)


def within(requests: Sequence[TracedRequest], seconds: float) -> list[TracedRequest]:
    """The same requests with their times scaled, so that they arrive from 0 to `seconds`."""
    first, last = requests[0].at_s, requests[-1].at_s
    scale = seconds / ((last - first) or 1.0)
    return [replace(request, at_s=(request.at_s - first) * scale) for request in requests]


def copies(requests: Sequence[TracedRequest], count: int, seed: int) -> list[TracedRequest]:
    """The trace and `count` - 1 copies of it at once, which share no block. In a copy, every conversation begins at a
    random time at which it still fits into the trace's time; the pauses inside it stay.
    """
    end, rng = requests[-1].at_s, random.Random(seed)
    made = list(requests)
    for number in range(1, count):
        for group in conversations(requests):
            first, last = group[0].at_s, group[-1].at_s
            later = rng.uniform(0, end - (last - first)) - first
            made += [
                replace(
                    request,
                    at_s=request.at_s + later,
                    blocks=tuple(block + number * _COPY for block in request.blocks),
                )
                for request in group
            ]
    return sorted(made, key=lambda request: request.at_s)


def shared_tokens(requests: Iterable[TracedRequest]) -> list[int]:
    """For each request, the prompt tokens that an unlimited prefix cache would hold when it arrives."""
    seen: set[int] = set()
    shared = []
    for request in requests:
        known = next((i for i, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        seen.update(request.blocks)
        shared.append(min(known * TRACE_BLOCK, request.prompt_tokens - 1))
    return shared


def scaled(tokens: int, block_tokens: int) -> int:
    """A length of the trace in tokens of the replay, at least 1."""
    return max(1, round(tokens * block_tokens / TRACE_BLOCK))


def token_ids(request: TracedRequest, block_tokens: int, vocabulary: range) -> Int32Array:
    """The prompt of the replay, int32 [scaled(prompt_tokens)]. vocabulary: the token ids to draw from."""
    blocks = [
        np.random.default_rng(block).integers(vocabulary.start, vocabulary.stop, block_tokens, dtype=np.int32)
        for block in request.blocks
    ]
    return np.concatenate(blocks)[: scaled(request.prompt_tokens, block_tokens)]
