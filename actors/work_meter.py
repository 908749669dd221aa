"""Measures a replica's load and the cost of its requests, from their begin and end only.

Costs are in *replica-seconds*: the time of the replica, divided by the number of requests that run at once. The replica
runs `batch` requests at once without slowing them down, so the divisor is at least `batch` (the virtual time of fair
queueing, Parekh and Gallager 1993). All costs add up to the replica's busy time. Unlike latencies, they do not include
waiting.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WEIGHT = 0.1
"""Weight of the newest request in the moving means."""


class WorkMeter:
    """batch: number of requests that the replica runs at once without slowing them down. clock: seconds."""

    def __init__(self, batch: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch, self._clock = batch, clock
        self._now = self._read_at = clock()
        self._running = self._tokens = self._finished = 0
        # _share: the cost of a request that ran all the time (virtual time). _busy: the replica's busy seconds.
        self._share = self._busy = self._busy_when_read = 0.0
        self._mean_seconds = self._mean_tokens = 0.0

    @contextmanager
    def request(self, tokens: int) -> Iterator[None]:
        """Enclose one request with `tokens` prompt tokens. Failed and aborted requests do not change the mean costs."""
        self._advance()
        begin = self._share
        self._running += 1
        self._tokens += tokens
        try:
            yield
            self._advance()
            self._learn(self._share - begin, tokens)
        finally:
            self._advance()
            self._running -= 1
            self._tokens -= tokens

    def stats(self) -> dict[str, float]:
        """The numbers for `cluster.serve.autoscaling`.

        tokens_in_flight: prompt tokens of the running requests. busy: busy share of the time since the last call, 0 to
        1. seconds_per_request, seconds_per_token: means over about the last ten requests. They are missing before the
        first request has ended, because Serve averages over replicas and time and would average in their zeros.
        """
        self._advance()
        elapsed, busy = self._now - self._read_at, self._busy - self._busy_when_read
        self._read_at, self._busy_when_read = self._now, self._busy
        load = {"tokens_in_flight": float(self._tokens), "busy": busy / elapsed if elapsed > 0 else 0.0}
        if not self._finished:
            return load
        per_token = self._mean_seconds / self._mean_tokens if self._mean_tokens else 0.0
        return {**load, "seconds_per_request": self._mean_seconds, "seconds_per_token": per_token}

    def _advance(self) -> None:
        now = self._clock()
        each = (now - self._now) / max(self._running, self._batch)
        self._share += each
        self._busy += each * self._running
        self._now = now

    def _learn(self, seconds: float, tokens: int) -> None:
        self._finished += 1
        weight = max(WEIGHT, 1 / self._finished)
        self._mean_seconds += weight * (seconds - self._mean_seconds)
        self._mean_tokens += weight * (tokens - self._mean_tokens)
