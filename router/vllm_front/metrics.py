"""The metrics that a router records under vLLM's names, and `GET /metrics` of the whole deployment.

A router records what clients send and wait for, its own queue, and those of vLLM's HTTP app: names, labels and buckets
are vLLM's, whose PrometheusStatLogger makes them. Whichever router is asked tells the metrics of all replicas. One
gauge is made of theirs: their sum, the mean of a share, or their largest. Counters and histograms keep a series for
each replica.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from statistics import fmean

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
from vllm.config import VllmConfig
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.perf import PerfMetricsProm
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from actors.observability.exposition import OF_CLIENTS, QUEUES, VLLM, Exposition, Labels, expose, exposed, named
from actors.observability.metric_table import METRICS, Merge
from actors.observability.metrics import PROCESS
from router.admission.controller import Admission
from router.dispatch.telemetry import ClientMetrics

PATH = "/metrics"
FRESH_S = 1.0
"""An answer is given again for so long. Whoever asks needs no key, and every replica works for an answer."""
_MERGES: dict[Merge, Callable[[Iterable[float]], float]] = {"sum": sum, "mean": fmean, "max": max}


def stat_logger(vllm_config: VllmConfig, registry: CollectorRegistry) -> PrometheusStatLogger:
    """vLLM's logger, with its metrics in this registry."""
    kinds = {
        "_gauge_cls": partial(Gauge, registry=registry),
        "_counter_cls": partial(Counter, registry=registry),
        "_histogram_cls": partial(Histogram, registry=registry),
        "_perf_metrics_cls": type("Perf", (PerfMetricsProm,), {"_counter_cls": partial(Counter, registry=registry)}),
    }
    logger: PrometheusStatLogger = type("StatLogger", (PrometheusStatLogger,), kinds)(vllm_config)
    return logger


class FrontMetrics(ClientMetrics):
    """Those of one router. admission: what it queues counts as waiting, and what the speculator reads as running."""

    def __init__(self, vllm_config: VllmConfig, model_name: str, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._logger = stat_logger(vllm_config, self._registry)
        self._model_name, self._admission = model_name, admission

    def began(self, prompt_tokens: int, seconds: float) -> None:
        step = IterationStats()
        step.prompt_token_stats.total = prompt_tokens
        step.time_to_first_tokens_iter.append(seconds)
        self._logger.record(None, step)

    def ended(self, prompt_tokens: int, seconds: float) -> None:
        step = IterationStats()
        ended = FinishedRequestStats(FinishReason.STOP, e2e_latency=seconds, num_prompt_tokens=prompt_tokens)
        step.finished_requests.append(ended)
        self._logger.record(None, step)

    def count_requests_of(self, app: FastAPI) -> None:
        """Make the app's middleware count in this router's registry: vLLM has built the middlewares once before, and in
        the same registry those that are built now count nothing."""
        for middleware in app.user_middleware:
            if "registry" in middleware.kwargs:
                middleware.kwargs["registry"] = self._registry

    def exposition(self) -> Exposition:
        """What this router tells of the deployment's metrics."""
        reading, queued = self._admission.reading, self._admission.queued
        self._logger.record(SchedulerStats(num_running_reqs=reading, num_waiting_reqs=queued), None)
        families = list(self._registry.collect())
        front = [family for family in families if not family.name.startswith(VLLM)]
        # Beside them, vLLM's parsers of tool calls count in the process's own registry.
        parsers = [family for family in REGISTRY.collect() if family.name.startswith(VLLM)]
        return expose([*named(families, OF_CLIENTS | QUEUES), *front, *parsers, *PROCESS.collect()], self._model_name)


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
