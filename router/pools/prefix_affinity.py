"""Which replicas a request prefers, so that prompts with the same prefix meet the same caches. Pure: no Ray.

A prompt's key is the hash of its tokens up to `WINDOW_BLOCKS` past what its template puts before the first user message
(docs/architecture/request-path.md, "Affinity"). A preamble that clients repeat would send all of them to one replica.
So a prefix of d tokens is shared if at least `BRANCHES` prompts continued it in different ways by d tokens or more; the
key then goes `WINDOW_BLOCKS` past the longest shared prefix. Each router learns this from its own requests.

The replicas are ranked by a hash of key and replica (rendezvous hashing, Thaler and Ravishankar 1998), within bounds of
load (consistent hashing with bounded loads, Mirrokni et al. 2016).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import TypeVar

from cachetools import LRUCache

from kv_transfer.arrays import Int32Array
from kv_transfer.prefix_hash import prefix_hash
from router.decision.ledger import BLOCK_TOKENS

Replica = TypeVar("Replica", bound=Hashable)

WINDOW_BLOCKS = 2
BRANCHES = 8
"""Continuations that make a prefix a shared one."""

LOAD_FACTOR = 1.25
"""A replica may run this many times the average number of requests."""
SLACK = 1
"""And so many more, because the average of a few requests says little."""


class PrefixKeys:
    """Computes keys and learns shared prefixes. capacity: prefixes remembered; the oldest are forgotten first."""

    def __init__(self, capacity: int = 16384) -> None:
        self._continuations: LRUCache[bytes, set[bytes]] = LRUCache(capacity)

    def key(self, token_ids: Int32Array, hashes: Sequence[bytes], opening: int = 0, salt: str | None = None) -> str:
        """The key of a prompt, in hex. token_ids: int32 [M]. hashes: of its blocks of BLOCK_TOKENS. opening: as in
        `PromptSpans`. salt: prompts with different salts share no cache, so their keys differ."""
        first = -(-opening // BLOCK_TOKENS) + WINDOW_BLOCKS
        if token_ids.size < first * BLOCK_TOKENS:
            return prefix_hash(token_ids, salt).hex()
        windows = hashes[first - 1 :: WINDOW_BLOCKS]
        depth = 0
        for i, (prefix, longer) in enumerate(pairwise(windows)):
            if token_ids.size < 2 * BLOCK_TOKENS * (first + i * WINDOW_BLOCKS):
                break
            if self._learn(prefix, longer):
                depth = i + 1
        return windows[depth].hex()

    def _learn(self, prefix: bytes, longer: bytes) -> bool:
        """Record one continuation; whether the prefix is shared."""
        seen = self._continuations.setdefault(prefix, set())
        if len(seen) < BRANCHES:
            seen.add(longer)
        return len(seen) >= BRANCHES


def preferred(
    key: str, loads: Mapping[Replica, int], most: Mapping[Replica, int]
) -> tuple[list[Replica], list[Replica]]:
    """The replicas that may take a call, in the order of its key, and those that run too many requests. loads: running
    requests of each replica. most: the largest number that each may run."""
    bound, order = load_bound(list(loads.values())), ranked(key, list(loads))
    limits = {one: min(bound, most[one]) for one in order}
    return [one for one in order if loads[one] < limits[one]], [one for one in order if loads[one] >= limits[one]]


def ranked(key: str, replicas: Sequence[Replica]) -> list[Replica]:
    """The replicas, told apart by their `str`, in the order in which they are preferred for `key`. A replica that comes
    or goes moves only its own keys."""
    return sorted(replicas, key=lambda one: blake2b(f"{key} {one}".encode(), digest_size=8).digest())


def load_bound(loads: Sequence[int]) -> int:
    """How many requests a replica may run, with the next one. loads: running requests of each replica."""
    return math.ceil(LOAD_FACTOR * (sum(loads) + 1) / len(loads)) + SLACK
