"""What a replay takes of a trace (`benchmarks.replay.mooncake`), and the prompts that its ids become.

Each id stands for one block of `block_tokens` random tokens that follow from the id, and lengths are scaled in the same
way.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.replay.mooncake import TRACE_BLOCK, TracedRequest, conversations
from kv_transfer.arrays import Int32Array
from skim_common.errors import SkimError

CONVERSATION = Path(__file__).parents[1] / "traces" / "conversation.jsonl"
"""The bundled cut of Mooncake's conversation trace."""


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
