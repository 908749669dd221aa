"""The target pool's Ray Serve deployment class: an engine behind encoded messages."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import ray
from prometheus_client import Metric

from actors.multi_node import fetch_on_nodes, own_group, ray_for_ranks
from actors.observability.exposition import OF_CLIENTS, QUEUES, named
from actors.observability.spans import answer_span
from actors.observability.tracing import headers_of
from actors.pool_actor import PoolActor, PoolSettings, reply_to_failure
from actors.ray_hooks.replica_draining import Draining, handover, own_replica
from kv_transfer.codec import decode, encode
from kv_transfer.messages import ACCEPTED, GenerateRequest
from kv_transfer.reply_pieces import pieces
from skim_common.deadline import Deadline
from skim_common.engine_options import adapter_paths
from target_service.engine import TargetEngine, create_engine
from target_service.start_probe import CANDIDATES, find_failure


class TargetActor(PoolActor):
    """One replica: one engine, on one or several GPUs of its node, or of the nodes of its placement group."""

    pool = "target"
    _engine: TargetEngine

    async def __init__(self, settings: PoolSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        options = settings.options
        if "kv_role" in options:
            options = {"kv_host": ray.util.get_node_ip_address(), **options}
        group = own_group()
        self._prefills = options.get("kv_role") == "prefill"
        async with self._start("prefill" if self._prefills else "target", settings, group):
            if settings.engine != "mock":
                adapters = adapter_paths(options.get("lora_modules") or ()).values()
                models = [settings.model, options.get("draft_model"), *adapters]
                await fetch_on_nodes(group, filter(None, models))
            with ray_for_ranks(group):
                self._engine = create_engine(
                    settings.engine, settings.model, tensor_parallel=settings.tensor_parallel, options=options
                )
            await self._engine.prepare()
            most = options.get("max_logprobs", CANDIDATES)
            await self._probe(settings, lambda: find_failure(self._engine, settings.model, max_logprobs=most))
        self._draining = Draining(own_replica())
        self._engine_traces = "otlp_traces_endpoint" in options  # vLLM's own spans become children of ours

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Yields `ACCEPTED`, then encoded GenerateOutputs. An error is sent as the last message.

        When Serve stops this replica, and the time for its answers ends, the error is a HandoverError.
        """
        yield ACCEPTED
        try:
            request = decode(payload, GenerateRequest)
            deadline = Deadline.after(request.envelope.timeout_ms)
            with answer_span(request, self._engine.info) as answer:
                if self._engine_traces and (headers := headers_of(answer.span)):
                    request = replace(request, engine_args={**request.engine_args, "trace_headers": headers})
                async with aclosing(self._draining.each(self._engine.generate(request))) as outputs:
                    while (output := await deadline.next(outputs)) is not None:
                        answer.add(output)
                        for piece in pieces(output):
                            yield encode(piece)
                        if self._draining.deadline_passed and not output.finished:
                            raise handover()
        except Exception as error:
            await self._watch.check()
            yield reply_to_failure(error, "target")

    def engine_metrics(self) -> list[Metric]:
        """As PoolActor.engine_metrics. The decoding half of a split target counts the requests of both."""
        families = [family for family in self._engine.metric_families() if family.name not in OF_CLIENTS]
        return named(families, QUEUES) if self._prefills else families
