"""vLLM's metrics that a router records: what clients send and wait for, its own queue, and those of vLLM's HTTP app.

The names, labels and buckets are vLLM's: its own PrometheusStatLogger makes them.
"""

from functools import partial

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.perf import PerfMetricsProm
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from actors.observability.exposition import OF_CLIENTS, QUEUES, VLLM, Exposition, expose, named
from actors.observability.metrics import PROCESS
from router.admission.controller import Admission
from router.dispatch.telemetry import ClientMetrics


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
        """Make the app's middleware count in this router's registry.

        vLLM has built the app's middlewares once before. In the same registry, those that are built now count nothing.
        """
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
