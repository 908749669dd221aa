"""How long a pool reads, learned from its reads. Pure.

    milliseconds = fixed + linear FLOPs / speed of the linear layers + attention FLOPs / speed of attention

The FLOPs follow from the model (`skim_common.models.costs`). The fixed part and both speeds are fitted to a table of
reads. A row of the table has the latest reads of one size, so many short prompts do not displace the last long one.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import numpy as np

from skim_common.models.costs import LINEAR, Read, ReadCost

PER_SIZE = 4
"""Reads that are remembered of each size class: from one power of two of `ReadCost.work` to the next."""
CHANGE = 1.5
"""After PER_SIZE reads that took so many times longer than estimated, or shorter, the pool's speed has changed: earlier
reads are forgotten, but for those that were both larger and slower."""
NOISE = 0.1
"""The usual error of a measured time, as a share of it."""
QUEUE_DECAY_S = 10.0
"""A measured wait in the queue says little after this time."""
ENOUGH = 3
"""Reads before an estimate counts: the first requests of an engine can be slow."""


class PoolTime:
    """One pool's time to read. clock: seconds. cost: of its model, as soon as it is known.

    beside: reads of the same pool that have another speed and the same queue. Until these have been measured often
    enough, its times count, multiplied by what the first ones took longer.
    """

    def __init__(
        self, clock: Callable[[], float], cost: ReadCost = LINEAR, *, beside: "PoolTime | None" = None
    ) -> None:
        self._clock, self.cost, self._beside = clock, cost, beside
        self._table: dict[int, deque[tuple[np.ndarray, float]]] = defaultdict(partial(deque, maxlen=PER_SIZE))
        self._latest: deque[tuple[Read, float, float]] = deque(maxlen=PER_SIZE)
        self._fitted: np.ndarray | None = None
        self._queue_ms = 0.0
        self._count = 0
        self.measured_at = -math.inf

    def measure(self, read: Read, ms: float, queue_ms: float) -> None:
        """`read` took `ms` milliseconds after `queue_ms` in the pool's queue."""
        queue = self._beside or self
        queue._queue_ms, queue.measured_at = queue_ms, self._clock()
        ms = max(ms, 1e-3)
        self._latest.append((read, ms, ms / (self.estimate(read) or ms)))
        self._count += 1
        ratios = [ratio for _, _, ratio in self._latest]
        if len(ratios) == PER_SIZE and (min(ratios) > CHANGE or max(ratios) < 1 / CHANGE):
            self._forget()
            for earlier, took, _ in self._latest:
                self._remember(earlier, took)
        else:
            self._remember(read, ms)
        self._fitted = None

    def estimate(self, read: Read) -> float | None:
        """Milliseconds of a read, without the queue; None before ENOUGH reads."""
        if not self.is_known:
            return self._as_beside(self._beside, read) if self._beside else None
        return float(self._terms(read) @ self._coefficients())

    def _as_beside(self, beside: "PoolTime", read: Read) -> float | None:
        found = beside.estimate(read)
        longer = [took / (beside.estimate(earlier) or took) for earlier, took, _ in self._latest]
        return found and found * statistics.median(longer or [1.0])

    @property
    def is_known(self) -> bool:
        """Whether there were enough reads for an estimate of its own."""
        return self._count >= ENOUGH

    @property
    def queue_ms(self) -> float:
        """The expected wait in the queue."""
        if self._beside:
            return self._beside.queue_ms
        return self._queue_ms * math.exp(-(self._clock() - self.measured_at) / QUEUE_DECAY_S)

    def _forget(self) -> None:
        largest = max(self._size_class(read) for read, _, _ in self._latest)
        slowest = max(took for _, took, _ in self._latest)
        for size_class, row in self._table.items():
            left = [(terms, took) for terms, took in row if size_class > largest and took > slowest]
            self._table[size_class] = deque(left, maxlen=PER_SIZE)

    def _remember(self, read: Read, ms: float) -> None:
        self._table[self._size_class(read)].append((self._terms(read), ms))

    def _size_class(self, read: Read) -> int:
        return int(math.log2(self.cost.work(read)))

    def _terms(self, read: Read) -> np.ndarray:
        return np.array([1.0, self.cost.linear_flops(read), self.cost.attention_flops(read)])

    def _coefficients(self) -> np.ndarray:
        """Milliseconds of the fixed part and of one operation of either kind, each at least 0: float64 [3].

        Least squares of the errors as shares of the times: first of the measured ones, where a read that took ten times
        too long counts a hundredth, then of those of the first fit, without the reads that took CHANGE times longer.
        """
        if self._fitted is not None:
            return self._fitted
        reads = [read for row in self._table.values() for read in row]
        terms, took = np.array([terms for terms, _ in reads]), np.array([ms for _, ms in reads])
        expected = terms @ _least_squares(terms, took, took)
        slower = took / expected
        usual = slower <= max(CHANGE, slower.min())
        self._fitted = _least_squares(terms[usual], took[usual], expected[usual])
        return self._fitted


def _least_squares(terms: np.ndarray, took: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The coefficients, each at least 0, of `terms @ x = took` with the least squared error as a share of `scale`.

    What the reads do not show is assumed: no fixed part, and one speed for all operations. Either assumption counts as
    one more read whose error is NOISE. terms: [N, 3]. took, scale: [N], milliseconds.
    """
    unit = np.array([took.min(), *[np.median(took / terms[:, 1:].sum(axis=1))] * 2])
    rows = np.vstack([terms * unit / scale[:, None], NOISE * np.array([[1.0, 0.0, 0.0], [0.0, -1.0, 1.0]])])
    values = np.append(took / scale, [0.0, 0.0])
    used, found = np.ones(3, bool), np.zeros(3)
    while used.any():
        found[:] = 0.0
        found[used] = np.linalg.lstsq(rows[:, used], values)[0]
        if found.min() >= 0:
            break
        used[found.argmin()] = False  # the coefficient that would be below 0
    return unit * found
