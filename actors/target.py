"""The target pool's Ray Serve deployment class: an engine behind encoded messages."""

import logging
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import ray

from actors.error_replies import reply_to_failure
from actors.lifecycle.engine_watch import EngineWatch
from actors.lifecycle.startup import retried_start, uncollected
from actors.multi_node import fetch_on_nodes, own_group, ray_for_ranks
from actors.observability.factory import create_tracer
from actors.observability.logs import kept_log_file, log_through_serve
from actors.observability.metrics import PoolMetrics
from actors.observability.pool_spans import answer_span
from actors.ray_hooks.replica_draining import Draining, own_replica
from actors.work_meter import WorkMeter
from kv_transfer.messages import ACCEPTED, GenerateRequest
from kv_transfer.wire.codec import decode, encode
from skim_common.deadline import Deadline
from skim_common.errors import HandoverError
from target_service.factory import create_engine
from target_service.joined_outputs import joined

logger = logging.getLogger(__name__)


class TargetActor:
    """One replica: one engine, on one or several GPUs of its node, or of the nodes of its placement group.

    A half of a split target (option `kv_role`) offers its KV blocks at this node's address. batch: see WorkMeter.
    start_timeout_s: see `retried_start`. hung_after_s: see EngineWatch. traces: see `create_tracer`.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        engine: str,
        model: str,
        tensor_parallel: int,
        options: Mapping[str, Any],
        *,
        batch: int = 1,
        start_timeout_s: float = math.inf,
        hung_after_s: float = math.inf,
        traces: Mapping[str, Any] | None = None,
    ) -> None:
        log_through_serve()
        self._tracer = create_tracer(traces)
        if "kv_role" in options:
            options = {"kv_host": ray.util.get_node_ip_address(), **options}
        group = own_group()
        pool = "prefill" if options.get("kv_role") == "prefill" else "target"
        async with retried_start(pool, engine, model, tensor_parallel, options, limit_s=start_timeout_s):
            if engine != "mock":
                await fetch_on_nodes(group, filter(None, (model, options.get("draft_model"))))
            with uncollected(), kept_log_file(), ray_for_ranks(group):
                self._engine = create_engine(engine, model, tensor_parallel=tensor_parallel, options=options)
        self._watch = EngineWatch(self._engine, "target", group, hung_after_s=hung_after_s)
        self._draining = Draining(own_replica())
        self._engine_traces = "otlp_traces_endpoint" in options  # vLLM's own spans become children of ours
        self._work = WorkMeter(batch)
        self._metrics = PoolMetrics("target", self.stats)

    async def info(self) -> bytes:
        """This replica's ModelInfo, encoded."""
        return encode(self._engine.info)

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Yields `ACCEPTED`, then encoded GenerateOutputs. An error is sent as the last message.

        When Serve stops this replica, and the time for its answers ends, the error is a HandoverError.
        """
        yield ACCEPTED
        try:
            request = decode(payload, GenerateRequest)
            deadline = Deadline.after(request.timeout_ms)
            tokens = int(request.prompt.token_ids.size)
            with answer_span(self._tracer, request, self._engine.info) as answer, self._work.request(tokens):
                if self._engine_traces and (headers := answer.span.headers):
                    request = replace(request, engine_args={**request.engine_args, "trace_headers": headers})
                stream = joined(deadline.each(self._engine.generate(request)), request.interval_ms)
                async with aclosing(stream) as outputs:
                    async for output in outputs:
                        answer.add(output)
                        yield encode(output)
                        if self._draining.over and not output.finished:
                            raise HandoverError("this replica stops; another one continues the answer")
        except Exception as error:
            await self._watch.check()
            yield reply_to_failure(error, "target")

    async def stats(self) -> dict[str, Any]:
        """Counts of requests, speculative decoding and KV transfers, if the engine has them (vLLM's has)."""
        return await self._engine.stats()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's hook; it calls this every few seconds if the pool has autoscaling."""
        return self._work.stats()

    async def check_health(self) -> None:
        await self._engine.check_health()

    def __del__(self) -> None:
        if tracer := getattr(self, "_tracer", None):
            tracer.close()
        if watch := getattr(self, "_watch", None):
            watch.stop()
        if engine := getattr(self, "_engine", None):
            engine.close()
