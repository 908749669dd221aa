"""Decides when to draft ahead: from measured times, never from the drafts themselves."""

from skim_common.decaying_mean import DecayingMean

PROBE_ROUNDS = 8
"""Rounds of a probe. A probe times the slower of the two modes (drafting ahead on or off) again."""

STEADY_ROUNDS = 256
"""Rounds in the faster mode between two probes."""

_ROUND_DECAY = 0.97


class AheadBudget:
    """Decides when to draft ahead.

    The mode is on or off. The budget times the rounds of both modes, so it counts both the time that a hit saves and
    the time that drafting ahead costs other rows. It uses the faster mode and probes the other one at intervals.
    """

    def __init__(self) -> None:
        self.on = True
        """Whether to draft ahead after this round."""
        self._left = PROBE_ROUNDS  # rounds to time before the mode may change
        self._times = {ahead: DecayingMean(_ROUND_DECAY) for ahead in (True, False)}

    @property
    def pays(self) -> bool:
        """Whether rounds with drafting ahead are at least as fast; true until both modes were measured."""
        return self._times[True].value <= self._times[False].value or not self._times[False].weight

    def timed(self, ms: float, *, ahead: bool) -> None:
        """A round took `ms` milliseconds. ahead: whether its rows had been drafted ahead; False if no row had been."""
        if ahead != self.on:
            return  # this round began before the mode changed
        self._times[ahead].add(ms)
        self._left -= 1
        if self._left == 0:
            probe = self.on == self.pays
            self.on = self.pays != probe
            self._left = PROBE_ROUNDS if probe else STEADY_ROUNDS
