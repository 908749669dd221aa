"""How much work a replica has and what its requests cost: counted where they begin and end, without the engine's help.

Costs are in *replica-seconds*: the time that a request had the replica for itself, or its share where several ran at
once. A replica takes `batch` requests at no cost to each other, so a request never counts for less than 1 / batch of
the time it takes (the virtual time of fair queueing, Parekh and Gallager 1993). The costs of all requests sum up to the
time that the replica was busy, whatever their number: unlike latencies, they do not grow with the queue.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NEWEST = 0.1
"""Weight of the newest request in the means."""


class WorkMeter:
    """batch: requests that the replica works on at once without slowing them down. clock: seconds."""

    def __init__(self, batch: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch, self._clock = batch, clock
        self._now = self._read_at = clock()
        self._running = self._tokens = self._finished = 0
        # What one request that has been here all the time would have cost, and the replica's busy seconds.
        self._share = self._busy = self._busy_when_read = 0.0
        self._mean_seconds = self._mean_tokens = 0.0

    @contextmanager
    def request(self, tokens: int) -> Iterator[None]:
        """Around one request of so many tokens to read. One that fails or is aborted teaches nothing about costs."""
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
        """What `cluster.serve.autoscaling` reads.

        tokens_in_flight: to read, of the requests that run. busy: share of the time since the last call, 0 to 1.
        seconds_per_request, seconds_per_token: means over about the last ten requests; left out before the first, as
        Serve averages over time: a new replica's zeros would make its pool look cheap for a while.
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
        weight = max(NEWEST, 1 / self._finished)
        self._mean_seconds += weight * (seconds - self._mean_seconds)
        self._mean_tokens += weight * (tokens - self._mean_tokens)
