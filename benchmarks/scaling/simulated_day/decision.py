"""The router's decision with known times: its own cost model and its own rules, without a prompt's tokens."""

import math
from collections.abc import Callable

from benchmarks.scaling.simulated_day.pool import TimedEngine
from router.decision.cost_model import Mode, Reads, estimate, sooner
from router.decision.later_turns import LaterTurns
from router.decision.pool_time import PoolTime
from skim_common.models.costs import Read


class KnownTime(PoolTime):
    """A pool whose read times are those of an engine; its queue is what was measured last, as in a router."""

    def __init__(self, clock: Callable[[], float], seconds: Callable[[Read], float]) -> None:
        super().__init__(clock)
        self._seconds = seconds
        self.measured_at = clock()
        self._known: dict[tuple[int, int], float] = {}  # by tokens and cached ones

    def estimate(self, read: Read) -> float:
        """Milliseconds of a read, without the queue."""
        key = read.tokens, read.cached
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = 1e3 * self._seconds(read)
        return found

    def waited(self, seconds: float) -> None:
        """A prompt waited so long in the pool's queue."""
        self._queue_ms, self.measured_at = 1e3 * seconds, self._clock()


class Decider:
    """One router's decisions. keep_rate: of each selection. clock: seconds. always: every prompt is selected.

    skim_s: seconds of a speculative request besides both engines.
    """

    def __init__(
        self,
        target: TimedEngine,
        speculator: TimedEngine,
        keep_rate: float,
        skim_s: float,
        min_prompt_tokens: int,
        clock: Callable[[], float],
        *,
        always: bool = False,
    ) -> None:
        self._share, self._least, self._clock, self._always = keep_rate, min_prompt_tokens, clock, always
        self.target = KnownTime(clock, target.read_s)
        self.speculator = KnownTime(clock, lambda read: skim_s + speculator.select_s(read))
        self.turns = LaterTurns()

    def reads(self, prompt: int, dense: int, read: int, kept: int) -> Reads:
        """What the pools would read. dense, read, kept: tokens at the beginning that the target has cached as they are,
        that the speculator has cached, and whose kept part the target has cached."""
        share, selected = self._share, math.ceil(self._share * prompt)
        known = math.ceil(share * kept)
        more = max(selected - known, self.turns.kept(prompt - kept, share)) if kept else selected
        return Reads(Read.of(prompt, dense), Read.of(prompt), Read.of(prompt, read), Read.of(known + more, known))

    def mode(self, prompt: int, reads: Reads, before: Mode | None) -> Mode:
        """How a prompt runs. before: how its earlier turn ran, if it is cached."""
        if prompt < self._least:
            return "dense"
        if self._always:
            return "speculative"
        later = 0.0
        if before != "speculative":
            later = self.turns.extra_ms(
                lambda new: self.speculator.estimate(Read(new, prompt)),
                self.target,
                prompt,
                math.ceil(self._share * prompt),
                self._share,
            )
        found = estimate(reads, self.speculator, self.target, self._clock(), later)
        assert found is not None  # both times are known
        return "speculative" if sooner(found, before).speculative else "dense"
