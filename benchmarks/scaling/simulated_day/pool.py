"""The replicas of one pool in virtual time: who reads what and when, what the pool reports, and how it scales."""

import heapq
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.scaling.simulated_day.scaling import Autoscaler
from cluster.config.pools import AutoscalingConfig
from cluster.serve.autoscaling import Load
from skim_common.models.costs import Read

ARRIVED, BEGINS, READ, ENDS, TOKENS, ANSWER, NUMBER = range(7)
"""Columns of the requests that a pool has: seconds when it came, begins, is read; decode steps of the pool (`steps`) at
which its answer ends; tokens of the prompt and of the answer; its number."""


class TimedEngine(Protocol):
    """What the simulation asks of an engine (`cluster.plan.engine.Engine`). chunk: tokens of a prefill step."""

    @property
    def chunk(self) -> int: ...
    def read_s(self, read: Read) -> float: ...
    def select_s(self, read: Read) -> float: ...
    def step_s(self, rows: float, context: float) -> float: ...


@dataclass(frozen=True)
class PoolPlan:
    """A pool to simulate. gpus: of a replica. replicas: at the start; all the time without `scaling`.

    cache_tokens: tokens that the KV cache of a replica holds. most_rows: answers that a replica has at a time.
    """

    engine: TimedEngine
    gpus: int
    replicas: int
    cache_tokens: float
    most_rows: int = 256
    scaling: AutoscalingConfig | None = None


class SimulatedPool:
    """weight: real requests for which a simulated one stands; the same replica reads them one after the other.

    replicas: that run or start. rows: answers at the end of the latest tick. steps: decode steps of each answer since
    the start; an answer of n tokens ends n - 1 steps after its prompt was read. step_s: seconds of a step in this tick;
    0 in a pool that does not decode.
    """

    def __init__(self, plan: PoolPlan, start_s: float, tick_s: float, weight: float) -> None:
        self.plan = plan
        self._scaler = Autoscaler(plan.scaling, tick_s) if plan.scaling else None
        self._start_s, self._tick_s, self._weight = start_s, tick_s, weight
        self._free = [0.0] * plan.replicas  # when each replica has read what it was given
        self._answers: list[tuple[float, float]] = []  # at which step answers end, and the tokens that they hold
        self._used = 0.0
        self._starting: list[float] = []
        self.has = np.empty((7, 0))
        self._seconds = self._per_token = 0.0
        self.rows = self.steps = self.step_s = 0.0

    @property
    def replicas(self) -> int:
        return len(self._free)

    @property
    def cache_tokens(self) -> float:
        """Tokens of ended requests for which the caches have room."""
        return max(0.0, self.plan.cache_tokens * self.replicas - self._weight * float(self.has[TOKENS].sum()))

    def read(self, at: np.ndarray, service: np.ndarray, most_wait_s: float) -> np.ndarray:
        """When each prompt begins, float64 [N]: the replica that is free first takes it, in order of arrival.

        at: seconds, in order. service: seconds. A prompt that would wait longer than most_wait_s is refused: infinite.
        """
        free, begins = self._free, []
        for arrived, seconds in zip(at.tolist(), service.tolist(), strict=True):
            begin = max(free[0], arrived)
            if begin - arrived > most_wait_s:
                begins.append(np.inf)
                continue
            heapq.heapreplace(free, begin + self._weight * seconds)
            begins.append(begin)
        return np.array(begins)

    def answer(self, requests: np.ndarray, service: np.ndarray, now: float, most_wait_s: float) -> np.ndarray:
        """Begin those requests that can begin before `now`, the end of the tick, in order: a replica is free for them,
        and the KV caches have room. Returns when they begin, float64 [N]; NaN: it waits; infinite: it is refused,
        because it has waited for most_wait_s.

        requests: as `has`, float64 [7, N]; BEGINS, READ and ENDS are filled in. service: seconds of the prefills.
        """
        free, answers, start = self._free, self._answers, now - self._tick_s
        rows, room = (most * self.replicas / self._weight for most in (self.plan.most_rows, self.plan.cache_tokens))
        begins = np.where(now - requests[ARRIVED] > most_wait_s, np.inf, np.nan)
        columns = (requests[ARRIVED].tolist(), service.tolist(), requests[TOKENS].tolist(), requests[ANSWER].tolist())
        for number, (arrived, seconds, tokens, answer) in enumerate(zip(*columns, strict=True)):
            begin, size = max(free[0], arrived, start), tokens + answer
            while answers and begin < now:
                ends = start + (answers[0][0] - self.steps) * self.step_s
                if ends > begin and len(answers) < rows and self._used + size <= room:
                    break
                begin = max(begin, ends)
                if begin < now:
                    self._used -= heapq.heappop(answers)[1]
            if begin >= now:
                break
            if begin - arrived > most_wait_s:
                begins[number] = np.inf
                continue
            heapq.heapreplace(free, begin + self._weight * seconds)
            begins[number], read = begin, begin + seconds
            requests[READ, number] = read
            requests[ENDS, number] = last = self.steps + (read - start) / self.step_s + answer - 1
            heapq.heappush(answers, (last, size))
            self._used += size
        requests[BEGINS] = begins
        return begins

    def take(self, requests: np.ndarray) -> None:
        """Requests that begin, as `has`."""
        self.has = np.concatenate([self.has, requests], axis=1)

    def reading(self, now: float) -> float:
        """The share of the tick that ends now in which the mean replica read."""
        busy = float(_within(self.has[BEGINS], self.has[READ], now, self._tick_s).sum())
        return min(1.0, self._weight * busy / (self._tick_s * self.replicas))

    def tick(self, now: float, queued: int) -> tuple[np.ndarray, np.ndarray]:
        """The end of a tick: scale, and forget the requests that have ended. Returns them, as `has`, and when they
        ended, seconds. queued: requests that wait to begin."""
        ends = self.has[READ]
        if self.step_s:
            ends = np.maximum(ends, now - self._tick_s + (self.has[ENDS] - self.steps) * self.step_s)
            self.steps += self._tick_s / self.step_s
        load, over = self._load(now, ends, queued), ends <= now
        ended, self.has = self.has[:, over], self.has[:, ~over]
        self.rows = self._weight * int((self.has[READ] <= now).sum())
        if self._scaler is not None:
            self._starting = [ready for ready in self._starting if ready > now]
            wanted = self._scaler.wanted(now, load, max(self.replicas - len(self._starting), 1), self.replicas)
            while self.replicas > wanted:
                self._stop_one()
            for _ in range(wanted - self.replicas):
                self._starting.append(now + self._start_s)
                heapq.heappush(self._free, now + self._start_s)
        return ended, ends[over]

    def _stop_one(self) -> None:
        """One that still starts, else the one that is idle first, which finishes what it has: as Serve does."""
        while self._starting:
            ready = self._starting.pop()
            if ready in self._free:  # it has been given nothing
                self._free.remove(ready)
                heapq.heapify(self._free)
                return
        heapq.heappop(self._free)

    def _load(self, now: float, ends: np.ndarray, queued: int) -> Load:
        """What the pool reports (`actors.work_meter`). ends: seconds, of the requests that it has."""
        has, tick, batch = self.has, self._tick_s, self.plan.scaling.batch if self.plan.scaling else 1
        there = self._weight * _within(has[ARRIVED], ends, now, tick) / tick
        running, over = float(there.sum()), ends <= now
        if self.step_s:  # it decodes, many answers at a time
            busy = min(float(self.replicas), running / batch)
            seconds = (ends - has[ARRIVED])[over] / max(running / self.replicas, batch)
        else:
            busy = self.replicas * self.reading(now)
            seconds = (has[READ] - has[BEGINS])[over]
        if seconds.size:
            self._seconds, self._per_token = float(seconds.mean()), float(seconds.sum() / has[TOKENS, over].sum())
        waiting, tokens = self._weight * queued, float((there * has[TOKENS]).sum())
        return Load(running + waiting, waiting, tokens, busy, self._seconds, self._per_token)


def _within(begins: np.ndarray, ends: np.ndarray, now: float, tick_s: float) -> np.ndarray:
    """Seconds of each span that lie in the tick that ends now."""
    seconds: np.ndarray = np.maximum(np.minimum(ends, now) - np.maximum(begins, now - tick_s), 0.0)
    return seconds
