"""What a run of `benchmarks.scaling.scale` sees of its deployment: the replicas of each pool, and the requests of each
replica.

The requests are the deployment's own metrics, as Prometheus would read them. The endpoint tells nothing of a replica
that is gone. So they are read during the whole run, and the highest count stands.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from benchmarks.scaling.summary import POOLS
from cluster.serve.app import APP_NAME
from skim_common.proxies import client_options

PARTS = ("router", *POOLS)
_TAKEN = {"router": "skim_router_requests_total"} | {pool: f"skim_{pool}_started_total" for pool in POOLS}
"""By part, the metric that counts the requests of a replica."""
_CALLS = "skim_router_affinity_total"
_SERIES = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_INTERVAL_S = 1.0
_EVERY = 5
"""The metrics are read with each so many looks at the replicas."""
SETTLE_S = 2.0
"""Seconds after which the endpoint tells the requests of now: it gives an answer again for a second."""


class Counts:
    """The highest value so far of the counters of each replica."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, str], float] = {}

    def read(self, text: str) -> None:
        """Take in the metrics of the endpoint. text: in Prometheus' format."""
        for line in text.splitlines():
            name = line.partition("{")[0]
            if name in _TAKEN.values() or name == _CALLS:
                series, _, value = line.rpartition(" ")
                self._highest[name, series] = max(float(value), self._highest.get((name, series), 0.0))

    def taken(self, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """By part, the requests of each of its replicas, the highest number first.

        sizes: replicas of each part that ran all the time. One without requests has no count.
        """
        found = {}
        for part, metric in _TAKEN.items():
            replicas: dict[str, float] = defaultdict(float)
            for series, value in self._of(metric):
                replicas[series["replica"]] += value
            idle = [0.0] * (sizes.get(part, 0) - len(replicas))
            found[part] = sorted((round(value) for value in [*replicas.values(), *idle]), reverse=True)
        return found

    def at_home(self) -> dict[str, float]:
        """By pool, the share of its calls that the replica took which their prefix prefers; empty without affinity."""
        calls: dict[str, dict[str, float]] = {}
        for series, value in self._of(_CALLS):
            outcomes = calls.setdefault(series["pool"], defaultdict(float))
            outcomes[series["outcome"]] += value
        return {pool: outcomes["home"] / sum(outcomes.values()) for pool, outcomes in sorted(calls.items())}

    def _of(self, metric: str) -> Iterator[tuple[dict[str, str], float]]:
        return (
            (dict(_SERIES.findall(series)), value) for (name, series), value in self._highest.items() if name == metric
        )


@contextmanager
def watched(zero: float, url: str) -> Iterator[tuple[list[dict[str, float]], Counts]]:
    """Look at the replicas of each pool and their counts in the background. Gives samples and counts that grow inside
    the context. zero: time.perf_counter() at the first request. url: of the endpoint.
    """
    samples: list[dict[str, float]] = []
    counts = Counts()
    over = threading.Event()

    def watch() -> None:
        looks = 0
        while not over.wait(_INTERVAL_S):
            if (sample := _look()) is not None:
                samples.append({"s": time.perf_counter() - zero, **sample})
            looks += 1
            if looks % _EVERY == 0:
                _read_into(counts, url)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield samples, counts
    finally:
        over.set()
        watcher.join()
        _read_into(counts, url)


def _look() -> dict[str, int] | None:
    """Replicas of each pool now; None if Serve's controller does not answer, which costs one sample."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        found = serve.status().applications[APP_NAME].deployments
        states = {pool: found[pool].replica_states for pool in POOLS}
    except (RayError, RayServeException, KeyError):
        return None
    running = {pool: states[pool].get("RUNNING", 0) for pool in POOLS}
    return running | {f"{pool}_asked": running[pool] + states[pool].get("STARTING", 0) for pool in POOLS}


def _read_into(counts: Counts, url: str) -> None:
    """Read the metrics of the endpoint. If it does not answer, nothing is read this time."""
    try:
        counts.read(httpx.get(f"{url}/metrics", timeout=10, **client_options(url)).text)
    except httpx.TransportError:
        return
