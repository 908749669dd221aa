"""How long a prompt would wait for its first token, dense or speculative, and which is sooner. Pure.

    dense       = queue(target) + time(target, M - cached)
    speculative = queue(speculator) + time(speculator, M - read) + queue(target) + time(target, kept - cached)

M is the prompt's length; `read`, `kept` and `cached` are tokens. `router.decision.pool_time` has the time of a pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from router.decision.pool_time import PoolTime
from router.decision.rules import Decision
from skim_common.models.costs import Read


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds of computing until the first token, by pool; 0 where they are not known.

    selects: whether the prompt goes to the speculator first. most_tokens: of the answer. drafts_ms: the speculator's
    read of the kept prompt for drafts, after the selection. The prompt's own first token does not wait for it, but the
    prompts behind do. answers: False: the prompt ends with its selection, and the target gets nothing of it.
    """

    speculator_ms: float = 0.0
    target_ms: float = 0.0
    selects: bool = False
    most_tokens: int = 0
    drafts_ms: float = 0.0
    answers: bool = True

    @property
    def total_ms(self) -> float:
        return self.speculator_ms + self.target_ms


Mode = Literal["dense", "speculative"]
MODES: tuple[Mode, ...] = "dense", "speculative"

MARGIN = 0.1
"""A prompt runs speculative, or changes the mode of its earlier turn, only for a gain of this share."""
STALE_S = 300.0
"""A prompt with n times the dense estimate tries the speculator again if nothing was read there for n times this."""

SPECULATOR_SHARE = 0.25
"""The speculator's time per token as a share of the target's, until both are measured."""
UNMEASURED = Decision(True, "unmeasured")
NO_CORRECTIONS: Mapping[Mode, float] = dict.fromkeys(MODES, 1.0)


@dataclass(frozen=True, slots=True)
class Reads:
    """What each pool would read: the target of the whole prompt, the speculator, the target of the kept prompt.

    cold: what the target would read of the whole prompt with an empty cache.
    """

    dense: Read
    cold: Read
    read: Read
    kept: Read


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds until the first token. cold: dense with an empty cache. age_s: of the speculator's last measurement,
    seconds. later: how much longer the turns after this one are expected to take if this one runs speculative
    (`router.decision.later_turns`). queue: the wait for the target, which is a part of all three. burden: how much
    longer all others wait if this prompt runs dense and not speculative.
    """

    dense: float
    speculative: float
    cold: float
    age_s: float = 0.0
    later: float = 0.0
    queue: float = 0.0
    burden: float = 0.0

    def of(self, mode: str) -> float:
        return self.speculative if mode == "speculative" else self.dense


def estimate(
    reads: Reads,
    speculator: PoolTime,
    target: PoolTime,
    now: float,
    later: float = 0.0,
    corrections: Mapping[Mode, float] = NO_CORRECTIONS,
) -> Estimate | None:
    """None before both pools have been measured often enough. later: as in Estimate. corrections: by what the computing
    of each mode is multiplied (`router.decision.kinds`)."""
    read = speculator.estimate(reads.read)
    kept = target.estimate(reads.kept)
    dense, cold = target.estimate(reads.dense), target.estimate(reads.cold)
    if read is None or kept is None or dense is None or cold is None:
        return None
    queue, asked = target.queue_ms, speculator.queue_ms
    return Estimate(
        dense=queue + corrections["dense"] * dense,
        speculative=asked + queue + corrections["speculative"] * (read + kept),
        cold=queue + corrections["dense"] * cold,
        age_s=now - speculator.measured_at,
        later=later,
        queue=queue,
        # As many wait behind this prompt as before it: the queue, divided by the time that one of them takes.
        burden=(dense - kept - later) * queue / kept - asked if kept else 0.0,
    )


def sooner(estimate: Estimate, before: Mode | None = None) -> Decision:
    """Whether the first token is sooner speculative, by MARGIN and by what later turns lose then; else dense, which
    reads the whole prompt.

    before: how the earlier turn of this prompt ran, if there was one. After a speculative turn, dense must be sooner by
    MARGIN. MARGIN is a share of what the prompt itself takes. If it were one of the wait too, a loaded target would get
    dense prompts, which load it more.
    Reasons: `cached` (dense, thanks to the target's cache), `sooner`, `later-turns` (dense, although this turn's first
    token is sooner speculative), `load` (speculative, although its first token is sooner dense: that would delay others
    more), `probe` (speculative, to measure the speculator again; see also `router.decision.kinds`).
    """

    def less(ms: float) -> float:
        return ms - MARGIN * (ms - estimate.queue)

    worth = less(estimate.cold)
    dense = estimate.dense if before == "speculative" else less(estimate.dense)
    alone = less(estimate.speculative) if before == "speculative" else estimate.speculative
    speculative = alone + estimate.later
    if speculative < dense:
        return Decision(True, "sooner")
    if speculative < dense + estimate.burden:
        return Decision(True, "load")
    if estimate.age_s * estimate.dense > STALE_S * speculative:
        return Decision(True, "probe")
    if alone < dense:
        return Decision(False, "later-turns")
    return Decision(False, "cached" if estimate.speculative < worth else "sooner")


def fewer(reads: Reads, extra: float) -> Decision:
    """As `sooner`, before both pools have been measured: speculative, unless dense reads no more tokens.

    Reasons: `unmeasured` (speculative), the others as in `sooner`.
    extra: how many more tokens later turns read if this one runs speculative (`LaterTurns.extra_tokens`).
    """
    if reads.dense.tokens <= reads.kept.tokens:
        return Decision(False, "cached" if reads.dense.cached else "sooner")
    if extra and reads.dense.tokens <= SPECULATOR_SHARE * reads.read.tokens + reads.kept.tokens + extra:
        return Decision(False, "later-turns")
    return UNMEASURED
