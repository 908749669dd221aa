"""The deadline of an exchange with a drafter. It follows what exchanges take, because a batch waits for each one."""

SHORTEST = 0.08
"""The shortest deadline, as a share of the longest: 20 ms of the default 250 ms."""
TIMES = 4
"""The deadline is this multiple of the average."""
WEIGHT = 0.2


class ExchangeDeadline:
    """TIMES the moving average of the exchanges, from SHORTEST * `longest_s` to `longest_s` seconds.

    Only exchanges that waited for their drafts count. The deadline is `longest_s` until the first one. An exchange that
    missed its deadline counts as long as that deadline. So the deadline grows by 60 % with each miss, until a slower
    drafter is reached again.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._average_s: float | None = None

    def seconds(self) -> float:
        """For the next exchange."""
        if self._average_s is None:
            return self._longest_s
        return min(max(TIMES * self._average_s, SHORTEST * self._longest_s), self._longest_s)

    def observe(self, seconds: float) -> None:
        """Record an exchange that took this time, or that missed this deadline."""
        before = self._average_s
        self._average_s = seconds if before is None else before + WEIGHT * (seconds - before)
