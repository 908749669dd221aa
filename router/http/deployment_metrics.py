"""`GET /metrics`: vLLM's and Skim's metrics of the whole deployment, whichever router is asked.

One gauge is made of those of all replicas: their sum, the mean of a share, or their largest. Counters and histograms
keep a series for each replica.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from statistics import fmean

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, Metric

from actors.observability.exposition import Exposition, Labels, exposed
from actors.observability.metric_table import METRICS, Merge

PATH = "/metrics"
FRESH_S = 1.0
"""An answer is given again for so long. Whoever asks needs no key, and every replica works for an answer."""
_MERGES: dict[Merge, Callable[[Iterable[float]], float]] = {"sum": sum, "mean": fmean, "max": max}


class DeploymentMetrics:
    """ask: what all replicas tell, this router among them; a replica that does not answer is left out."""

    def __init__(self, ask: Callable[[], Awaitable[list[Exposition]]]) -> None:
        self._ask = ask
        self._answer: asyncio.Task[str] | None = None
        self._answered_at = 0.0

    def add_route(self, app: FastAPI) -> None:
        """Answer at PATH in place of vLLM's front, which knows of no engine."""
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != PATH]

        @app.get(PATH, include_in_schema=False)
        async def metrics() -> Response:
            return Response(await self.text(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def text(self) -> str:
        """The metrics in Prometheus' text format. Calls at the same time share an answer."""
        now = asyncio.get_running_loop().time()
        if self._answer is None or (self._answer.done() and now - self._answered_at > FRESH_S):
            self._answer, self._answered_at = asyncio.create_task(self._collect()), now
        return await asyncio.shield(self._answer)

    async def _collect(self) -> str:
        replicas = await self._ask()
        # What prometheus_client tells of this router's process, as in stock vLLM.
        own = [family for family in REGISTRY.collect() if family.name.startswith(("python_", "process_"))]
        return await asyncio.to_thread(lambda: merged_metrics(replicas) + exposed(own))


def merged_metrics(expositions: Iterable[Exposition]) -> str:
    """The metrics of all replicas in Prometheus' text format."""
    counts: defaultdict[str, list[str]] = defaultdict(list)
    gauges: dict[str, Metric] = {}
    values: defaultdict[str, defaultdict[Labels, list[float]]] = defaultdict(lambda: defaultdict(list))
    for replica in {one.replica: one for one in expositions}.values():
        for header, lines in replica.counts.items():
            counts[header].append(lines)
        for name, text, labels, value in replica.gauges:
            gauges.setdefault(name, Metric(name, text, "gauge"))
            values[name][labels].append(value)
    for name, gauge in gauges.items():
        for labels, parts in values[name].items():
            gauge.add_sample(name, dict(labels), _MERGES[_merge(name)](parts))
    return "".join(header + "".join(lines) for header, lines in counts.items()) + exposed(gauges.values())


def _merge(name: str) -> Merge:
    if name in METRICS:
        return METRICS[name].merge
    # vLLM's, by their names.
    return "mean" if name.endswith("_perc") else "max" if name.endswith(("_info", "_state")) else "sum"
