"""Records the metrics of `metric_table` in this process, and makes those of a pool from its counts."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import Metric as Family

from actors.observability.metric_table import METRICS, Metric, pool_metric

PROCESS = CollectorRegistry()
"""Skim's own metrics of this process; `ProcessMeter` records them."""


class Meter(Protocol):
    """Records metrics. Tests use one that stores them."""

    def record(self, name: str, value: float, **tags: str) -> None:
        """Add `value` to a counter, set a gauge to it, or observe it in a histogram, by the kind of METRICS[name]."""
        ...


class ProcessMeter:
    """Meter over PROCESS. All meters of a process share its instruments."""

    def record(self, name: str, value: float, **tags: str) -> None:
        instrument = _instrument(METRICS[name])
        labelled = instrument.labels(**tags) if tags else instrument
        if isinstance(labelled, Histogram):
            labelled.observe(value)
        elif isinstance(labelled, Gauge):
            labelled.set(value)
        else:
            labelled.inc(value)


@cache
def _instrument(metric: Metric) -> Counter | Gauge | Histogram:
    """The instrument of PROCESS, created once."""
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.text, metric.tags, registry=PROCESS, buckets=metric.buckets)
    return (Counter if metric.kind == "counter" else Gauge)(metric.name, metric.text, metric.tags, registry=PROCESS)


def pool_families(pool: str, stats: Mapping[str, Any]) -> Iterator[Family]:
    """The metrics of a replica of `pool` from its counts since the start; a count without a metric is ignored.

    The tag of a metric is the key of its count, a mapping, or the index, in a list.
    """
    for count, value in stats.items():
        if (metric := pool_metric(pool, count)) is None:
            continue
        family = Family(metric.name.removesuffix("_total"), metric.text, metric.kind)
        if metric.tags:
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in parts:
                family.add_sample(metric.name, {metric.tags[0]: str(key)}, float(part))
        else:
            family.add_sample(metric.name, {}, float(value))
        yield family
