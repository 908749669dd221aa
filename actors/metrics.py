"""A pool's counts as Prometheus metrics: gauges of Ray, which every node exports.

A count `rounds` of the target pool is `skim_target_rounds`. A mapping is one metric with the tag `reason`, a list one
with the tag `position`: `skim_target_fallbacks{reason="timeout"}`, `skim_target_accepted_per_position{position="0"}`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from ray.serve.metrics import Gauge

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


class PoolMetrics:
    """Publishes what `stats` gives, again and again; pool: `speculator` or `target`."""

    def __init__(self, pool: str, stats: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._pool, self._stats = pool, stats
        self._gauges: dict[str, Gauge] = {}
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                for name, tags, value in samples(await self._stats()):
                    self._gauge(name, tags).set(value, tags)
            except Exception as error:  # a metric is never worth an engine
                logger.warning("no %s metrics this time: %s", self._pool, error)

    def _gauge(self, name: str, tags: Mapping[str, str]) -> Gauge:
        if name not in self._gauges:
            full = f"skim_{self._pool}_{name}"
            self._gauges[name] = Gauge(full, f"{name.replace('_', ' ')} of the {self._pool} pool", tuple(tags))
        return self._gauges[name]


def request_counts(engine: Any) -> dict[str, Any]:
    """The engine's own counts of requests, where it keeps them (the mock does)."""
    return {name: getattr(engine, name) for name in ("started", "running", "aborted") if hasattr(engine, name)}


def samples(stats: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each number in `stats` with its name and tags, as the module's text says."""
    for name, value in stats.items():
        if isinstance(value, Mapping):
            yield from ((name, {"reason": str(key)}, float(v)) for key, v in value.items())
        elif isinstance(value, list | tuple):
            yield from ((name, {"position": str(i)}, float(v)) for i, v in enumerate(value))
        else:
            yield name, {}, float(value)
