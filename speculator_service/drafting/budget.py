"""How much to draft ahead: what it gave so far decides, never the drafts themselves."""

from speculator_service.drafting.draft_ahead import Guess

PROBE = 8
"""Rounds timed of the way that seems the slower one, with or without drafting ahead, to see whether it still is."""

STRETCH = 256
"""Rounds of the faster way between two probes."""

FLOOR = 0.01
"""A guess less likely than this is not worth a row of the drafter's batch."""

_ROUND_MEMORY = 0.97
_GUESS_MEMORY = 0.99
_DRAFT_MEMORY = 0.9


class SessionAcceptance:
    """The share of one session's drafts that the target accepts, the recent ones counting most."""

    def __init__(self) -> None:
        self._accepted, self._tried = 3.0, 4.0

    @property
    def rate(self) -> float:
        return self._accepted / self._tried

    def add(self, accepted: int, sent: int) -> None:
        """accepted of sent drafts: each accepted one was tried, and the first that was not."""
        if sent:
            self._accepted = self._accepted * _DRAFT_MEMORY + accepted
            self._tried = self._tried * _DRAFT_MEMORY + min(accepted + 1, sent)


class AheadBudget:
    """When to draft ahead and for how many guesses.

    Rounds with work ahead are timed against rounds without, so that the time that it costs other rows counts as much as
    the time that a hit saves; whichever is faster goes on, and the other is tried again now and then.
    """

    def __init__(self, max_branches: int) -> None:
        """max_branches: guesses drafted at once, over all sessions."""
        self.on = True
        """Whether to draft ahead after this round."""
        self._max_branches = max_branches
        self._left = PROBE  # rounds to time before the way may change
        self._times = {True: _Mean(), False: _Mean()}
        self._hits = self._expected = 4.0

    @property
    def pays(self) -> bool:
        """Whether rounds with work ahead are not the slower ones; true until both were seen."""
        return self._times[True].value <= self._times[False].value or not self._times[False].count

    def timed(self, ms: float, *, ahead: bool) -> None:
        """A round took so long, after work ahead of its rows, or with no work ahead of any row about."""
        if ahead != self.on:
            return  # left from before the way changed
        self._times[ahead].add(ms)
        self._left -= 1
        if self._left == 0:
            probe = self.on == self.pays
            self.on = self.pays != probe
            self._left = PROBE if probe else STRETCH

    def resolved(self, guesses: list[Guess], hit: bool) -> None:
        """The target answered: one of the guesses was right, or none."""
        self._hits = self._hits * _GUESS_MEMORY + hit
        self._expected = self._expected * _GUESS_MEMORY + sum(g.probability for g in guesses)

    def choose(self, guesses: list[Guess], rows: int) -> list[Guess]:
        """The guesses, likeliest first, that are worth it while `rows` requests share the drafter; at least one."""
        trust = self._hits / max(self._expected, 1e-6)
        most = max(1, self._max_branches // max(1, rows))
        worth = [g for g in guesses if g.probability * trust >= FLOOR]
        return (worth or guesses[:1])[:most]


class _Mean:
    """A mean in which the recent values count most."""

    def __init__(self) -> None:
        self._sum = self.count = 0.0

    @property
    def value(self) -> float:
        return self._sum / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        self._sum = self._sum * _ROUND_MEMORY + value
        self.count = self.count * _ROUND_MEMORY + 1
