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


class RayMeter:
    """Meter over ray.serve.metrics and `exposition.PROCESS`. It creates each instrument once, at its first use."""

    def __init__(self) -> None:
        self._record: dict[str, Callable[..., None]] = {}

    def record(self, name: str, value: float, **tags: str) -> None:
        if name not in self._record:
            self._record[name] = _instrument(METRICS[name])
        self._record[name](value, tags)
        _exposed(name)(value, tags)


@cache
def _exposed(name: str) -> Callable[[float, dict[str, str]], None]:
    """Records in PROCESS. All meters of the process share it."""
    metric = METRICS[name]
    definition = metric.name, metric.text, metric.tags
    if metric.kind == "counter":
        counter = prometheus_client.Counter(*definition, registry=PROCESS)
        return lambda value, tags: _of(counter, tags).inc(value)
    if metric.kind == "gauge":
        gauge = prometheus_client.Gauge(*definition, registry=PROCESS)
        return lambda value, tags: _of(gauge, tags).set(value)
    histogram = prometheus_client.Histogram(*definition, registry=PROCESS, buckets=metric.buckets)
    return lambda value, tags: _of(histogram, tags).observe(value)


def _of(instrument: Any, tags: Mapping[str, str]) -> Any:
    """The part of the instrument for these tags."""
    return instrument.labels(**tags) if tags else instrument


def _instrument(metric: Metric) -> Callable[..., None]:
    if metric.kind == "counter":
        increase = Counter(metric.name, metric.text, metric.tags).inc
        # Ray refuses an increment of 0.
        return lambda value, tags: increase(value, tags) if value > 0 else None
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.text, metric.tags).set
    return Histogram(metric.name, metric.text, list(metric.buckets), metric.tags).observe


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
