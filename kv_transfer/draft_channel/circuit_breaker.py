"""A circuit breaker: it stops calls to a peer that does not answer, and allows a trial call after a growing pause."""

import time
from collections.abc import Callable


class CircuitBreaker:
    """The circuit opens after `failures` failed calls in a row. After a pause, one call is allowed as a trial.

    A trial that fails doubles the pause, up to `longest_pause_s`. A trial that succeeds closes the circuit.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        first_pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed_failures = failures
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._failures = 0
        self._pause_s = 0.0
        self._open_until: float | None = None

    @property
    def pause_s(self) -> float:
        """The latest pause, in seconds; 0 while the circuit is closed."""
        return self._pause_s

    def allows_call(self) -> bool:
        """Whether a call may be made now."""
        return self._open_until is None or self._clock() >= self._open_until

    def succeeded(self) -> None:
        """Record an answered call."""
        self._failures, self._pause_s, self._open_until = 0, 0.0, None

    def failed(self, *, for_sure: bool = False) -> bool:
        """Record a failed call. Returns whether the circuit opened. for_sure: the peer is gone, so open at once."""
        self._failures += 1
        if not (for_sure or self._open_until is not None or self._failures >= self._allowed_failures):
            return False
        self._pause_s = min(2 * self._pause_s, self._longest_pause_s) if self._pause_s else self._first_pause_s
        self._open_until = self._clock() + self._pause_s
        return True
