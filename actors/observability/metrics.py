"""Records the metrics of `metric_table` through Ray, which exports them on every node for Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from ray.serve.metrics import Counter, Gauge, Histogram

from actors.observability.metric_table import METRICS, Metric, pool_metric

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


class Meter(Protocol):
    """What records; tests give one that remembers."""

    def record(self, name: str, value: float, **tags: str) -> None:
        """Add `value` to a counter, set a gauge to it, or count it in a histogram, as METRICS says of `name`."""
        ...


class RayMeter:
    """Meter over ray.serve.metrics. An instrument is made when it is first needed, and there is one of each."""

    def __init__(self) -> None:
        self._record: dict[str, Callable[..., None]] = {}

    def record(self, name: str, value: float, **tags: str) -> None:
        if name not in self._record:
            self._record[name] = _instrument(METRICS[name])
        self._record[name](value, tags)


def _instrument(metric: Metric) -> Callable[..., None]:
    if metric.kind == "counter":
        increase = Counter(metric.name, metric.text, metric.tags).inc
        # Ray takes no increment of nothing.
        return lambda value, tags: increase(value, tags) if value > 0 else None
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.text, metric.tags).set
    return Histogram(metric.name, metric.text, list(metric.buckets), metric.tags).observe


class PoolMetrics:
    """Publishes what `stats` gives, again and again; pool: `speculator` or `target`."""

    def __init__(self, pool: str, stats: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._stats, self._counts = stats, PoolCounts(pool, RayMeter())
        self._pool = pool
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._counts.record(await self._stats())
            except Exception as error:  # a metric is never worth an engine
                logger.warning("no %s metrics this time: %s", self._pool, error)


class PoolCounts:
    """Records a pool's counts since its start: of those that only rise, what they rose by since the last time.

    A count that is no metric is left out.
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
    """Each number in `stats` with its metric and tags. A mapping's keys, or a list's places, are the metric's tag."""
    for count, value in stats.items():
        if (metric := pool_metric(pool, count)) is None:
            continue
        if metric.tags:
            [tag] = metric.tags
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            yield from ((metric, {tag: str(key)}, float(part)) for key, part in parts)
        else:
            yield metric, {}, float(value)
