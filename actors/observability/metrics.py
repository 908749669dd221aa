"""Records the metrics of `metric_table` through Ray, which exports them on every node, and for the endpoint."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any

import prometheus_client
from ray.serve.metrics import Counter, Gauge, Histogram

from actors.observability.exposition import PROCESS
from actors.observability.meter import Meter
from actors.observability.metric_table import METRICS, Metric, pool_metric

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0

_KINDS: dict[str, tuple[Any, Any, str]] = {
    "counter": (Counter, prometheus_client.Counter, "inc"),
    "gauge": (Gauge, prometheus_client.Gauge, "set"),
    "histogram": (Histogram, prometheus_client.Histogram, "observe"),
}
"""Ray's class, Prometheus' class, and the method of both that records."""


class RayMeter:
    """Meter over ray.serve.metrics and `exposition.PROCESS`. All meters of a process share its instruments."""

    def record(self, name: str, value: float, **tags: str) -> None:
        for record in _instruments(METRICS[name]):
            record(value, tags)


@cache
def _instruments(metric: Metric) -> tuple[Callable[[float, dict[str, str]], None], ...]:
    """What records the metric: Ray's instrument, and that of PROCESS. Each is created once."""
    of_ray, of_prometheus, verb = _KINDS[metric.kind]
    buckets = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
    own = of_prometheus(metric.name, metric.text, metric.tags, registry=PROCESS, **buckets)
    to_ray = getattr(of_ray(metric.name, metric.text, *map(list, buckets.values()), tag_keys=metric.tags), verb)

    def for_ray(value: float, tags: dict[str, str]) -> None:
        if value > 0 or metric.kind != "counter":  # Ray refuses an increment of 0
            to_ray(value, tags)

    def for_endpoint(value: float, tags: dict[str, str]) -> None:
        getattr(own.labels(**tags) if tags else own, verb)(value)

    return for_ray, for_endpoint


class PoolMetrics:
    """Publishes the result of `stats` every INTERVAL_S seconds. pool: `speculator` or `target`."""

    def __init__(self, pool: str, stats: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._stats, self._counts = stats, PoolCounts(pool, RayMeter())
        self._pool = pool
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._counts.record(await self._stats())
            except Exception as error:  # a failed metric must not stop an engine
                logger.warning("no %s metrics this time: %s", self._pool, error)


class PoolCounts:
    """Records a pool's counts since its start. For a counter it records the increase since the last call.

    A count without a metric is ignored.
    """

    def __init__(self, pool: str, meter: Meter) -> None:
        self._pool, self._meter = pool, meter
        self._last: dict[tuple[str, ...], float] = {}

    def record(self, stats: Mapping[str, Any]) -> None:
        for metric, tags, value in samples(self._pool, stats):
            if metric.kind == "counter":
                key = (metric.name, *tags.values())
                self._last[key], value = value, value - self._last.get(key, 0.0)
            self._meter.record(metric.name, value, **tags)


def samples(pool: str, stats: Mapping[str, Any]) -> Iterator[tuple[Metric, dict[str, str], float]]:
    """Each number in `stats` with its metric and tags. The tag is the key in a mapping, or the index in a list."""
    for count, value in stats.items():
        if (metric := pool_metric(pool, count)) is None:
            continue
        if metric.tags:
            [tag] = metric.tags
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            yield from ((metric, {tag: str(key)}, float(part)) for key, part in parts)
        else:
            yield metric, {}, float(value)
