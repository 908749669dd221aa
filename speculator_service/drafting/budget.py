"""Decides how much to draft ahead: from measured times and hit rates, never from the drafts themselves."""

from skim_common.decaying_mean import DecayingMean
from speculator_service.drafting.draft_ahead import Branch

PROBE_ROUNDS = 8
"""Rounds of a probe. A probe times the slower of the two modes (drafting ahead on or off) again."""

STEADY_ROUNDS = 256
"""Rounds in the faster mode between two probes."""

MIN_PROBABILITY = 0.01
"""A branch with a lower probability is not worth a row of the drafter's batch."""

_ROUND_DECAY = 0.97
_BRANCH_DECAY = 0.99
_DRAFT_DECAY = 0.9


class SessionAcceptance:
    """The acceptance rate of one session's drafts, as a decaying average: recent drafts weigh most."""

    def __init__(self) -> None:
        self._share = DecayingMean(_DRAFT_DECAY, 3.0, 4.0)

    @property
    def rate(self) -> float:
        return self._share.value

    def add(self, accepted: int, sent: int) -> None:
        """`accepted` of `sent` drafts were accepted. The accepted drafts and the first rejected one count as tried."""
        if sent:
            self._share.add(accepted, min(accepted + 1, sent))


class AheadBudget:
    """Decides when to draft ahead, and for how many branches.

    The mode is on or off. The budget times the rounds of both modes, so it counts both the time that a hit saves and
    the time that drafting ahead costs other rows. It uses the faster mode and probes the other one at intervals.
    """

    def __init__(self, max_branches: int) -> None:
        """max_branches: limit for the branches drafted at once, over all sessions."""
        self.on = True
        """Whether to draft ahead after this round."""
        self._max_branches = max_branches
        self._left = PROBE_ROUNDS  # rounds to time before the mode may change
        self._times = {ahead: DecayingMean(_ROUND_DECAY) for ahead in (True, False)}
        self._hits = self._expected = 4.0

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

    def resolved(self, branches: list[Branch], hit: bool) -> None:
        """The target's answer is known. hit: whether it matches one of the branches."""
        self._hits = self._hits * _BRANCH_DECAY + hit
        self._expected = self._expected * _BRANCH_DECAY + sum(b.probability for b in branches)

    def choose(self, branches: list[Branch], rows: int) -> list[Branch]:
        """The branches worth drafting while `rows` requests share the drafter; at least one.

        branches: the most probable first. Their probabilities are corrected by the measured hit rate.
        """
        correction = self._hits / max(self._expected, 1e-6)
        limit = max(1, self._max_branches // max(1, rows))
        worth = [b for b in branches if b.probability * correction >= MIN_PROBABILITY]
        return (worth or branches[:1])[:limit]
