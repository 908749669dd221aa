"""Whether the target reads a skimmed prompt whole after its answer, in which parts, and how fast. Pure.

The next turn then finds its history in the target's prefix cache and runs dense (`router.dispatch.catch_up`).
"""

import math
from collections.abc import Callable

from kv_transfer.options import ALWAYS
from router.decision.choice import Decision
from router.decision.ledger import BLOCK_TOKENS
from router.options.request import OFF, PrefillOptions

CHUNK_TOKENS, LEAST_CHUNK = 2048, 256
CHUNK_MS = 500.0
"""A chunk that is expected to take longer is smaller: running streams stand still while the engine computes it."""
STREAM_SHARE = 0.9
"""Running streams keep this share of their speed."""
FREE_SHARE = 0.5
"""A conversation of a larger share of a replica's prefix cache would evict too much of the others."""
FRESH_TOKENS = 8192
"""A turn of a conversation that was caught up stays dense, and so exact, up to so many new tokens. More of them are
skimmed if that is sooner: of the public traces of agents, 6 % of the turns are longer, with 64 % of the new tokens."""
AUDIT = "audit"
"""The reason of a catch-up for the measurement alone."""
LIKELY = 1 / 3
"""From this share of prompts with a next turn on, one is likely: two conversations have one later turn together."""


def plan(
    options: PrefillOptions,
    *,
    tokens: int,
    room: float,
    later_requests: int | None = None,
    share: float = 0.0,
    audited: bool = False,
    has_home: bool = True,
    others: int = 0,
    capacity: float = math.inf,
) -> tuple[bool, str]:
    """Whether the target reads a prompt, of which a selection dropped something, whole after its answer, and why.

    `auto` asks that a later turn is likely and would run dense then, and that the caches have room for all
    conversations that came back lately. `always` leaves that out.

    tokens: of prompt and answer, at most. room: tokens of a replica's prefix cache. later_requests: the client's number
    of them. share: of such prompts of its client that have a next turn. audited: chosen for a measurement. has_home:
    all turns go to one replica. others: tokens of these conversations. capacity: of the caches of all replicas.
    """
    rules = (
        (options.catch_up == OFF, False, "disabled"),
        (tokens > FREE_SHARE * room, False, "no-room"),
        (options.catch_up == ALWAYS, True, "requested"),
        (not has_home, False, "no-affinity"),
        (tokens + others > capacity, False, "no-room"),
        (options.enabled == ALWAYS, False, "always"),
        (audited, True, AUDIT),
        (later_requests is not None, bool(later_requests), "later-requests" if later_requests else "no-later-turn"),
        (share >= LIKELY, True, "later-turns"),
    )
    return next(((planned, reason) for applies, planned, reason in rules if applies), (False, "no-later-turn"))


def stays_dense(choice: Decision, known: int, size: int) -> bool:
    """Whether a turn that was caught up runs dense although time chose to skim it. known: its cached tokens in the
    target. Load has priority."""
    return choice.reason != "load" and size - known <= min(known, FRESH_TOKENS)


def chunk_tokens(estimate_ms: Callable[[int], float | None]) -> int:
    """The tokens of the next chunk. estimate_ms: of a chunk of so many tokens; None if it is not known."""
    tokens = CHUNK_TOKENS
    while tokens > LEAST_CHUNK and (estimate_ms(tokens) or 0.0) > CHUNK_MS:
        tokens //= 2
    return tokens


def next_read(done: int, prompt: int, scored: int, total: int, chunk: int) -> tuple[int, int]:
    """The end of the next read of a prompt and its answer, and how many of its last tokens are scored.

    done: tokens that are read. total: of prompt and answer. scored: first tokens of the answer that are still to be
    scored. chunk: at least two blocks. The prefix cache finds whole blocks, so each end but the last is that of one.
    Log probabilities are computed for all tokens of a read, so the scored one begins in the block before them.
    """
    goal = prompt + scored if scored else total
    if scored:
        whole = (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if done >= whole:
            return goal, scored
        return min(whole, (done + chunk) // BLOCK_TOKENS * BLOCK_TOKENS), 0
    return (goal if goal - done <= chunk else (done + chunk) // BLOCK_TOKENS * BLOCK_TOKENS), 0


def pause_ms(chunk_ms: float) -> float:
    """The pause after a chunk that took so long, in which a stream may have got nothing."""
    return chunk_ms * STREAM_SHARE / (1 - STREAM_SHARE)
