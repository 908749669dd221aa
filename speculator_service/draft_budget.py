"""How much to draft ahead: what it gave so far decides, never the drafts themselves."""

from speculator_service.draft_ahead import Guess

EPOCH = 8
"""Rounds in a row with, or without, drafting ahead."""

PROBE = 32
"""One epoch in so many does what seems not to pay, to see whether it does now."""

FLOOR = 0.02
"""A guess less likely than this is not worth a row of the drafter's batch."""

_ROUND_MEMORY = 0.95
_GUESS_MEMORY = 0.99
_DRAFT_MEMORY = 0.9


class Acceptance:
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
        self._max_branches = max_branches
        self._rounds = 0
        self._ms: dict[bool, float] = {}
        self._hits = self._expected = 4.0

    @property
    def pays(self) -> bool:
        """Whether rounds with work ahead are not the slower ones; true until both were seen."""
        return len(self._ms) < 2 or self._ms[True] <= self._ms[False]

    def next_round(self) -> bool:
        """Whether to draft ahead after this round; called once a round."""
        epoch = self._rounds // EPOCH
        self._rounds += 1
        return self.pays != (epoch % PROBE == 1)

    def timed(self, ms: float, *, ahead: bool) -> None:
        """A round took so long, with or without work ahead of its rows."""
        before = self._ms.get(ahead, ms)
        self._ms[ahead] = before * _ROUND_MEMORY + ms * (1 - _ROUND_MEMORY)

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
