"""OpenTelemetry spans, sent to a collector by OTLP over HTTP. Only this file imports OpenTelemetry.

This module has its own tracer provider, because vLLM sets the process-wide provider when its traces are on
(vllm.tracing.otel). Parents are always passed explicitly, never by a context variable, because an async generator may
end in another context than the one it began in.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from ray import serve
from ray.serve.exceptions import RayServeException

from actors.observability.tracing import NO_SPAN, REQUEST_ID, Attributes, Kind, Span

CLOSE_S = 5.0
"""How long a stopping replica waits until its last spans are sent, in seconds."""

TRACES_PATH = "/v1/traces"
"""The path for spans below the OTLP/HTTP endpoint (OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT)."""

_KINDS = {kind: trace.SpanKind[kind.upper()] for kind in ("internal", "client", "server")}
_PROPAGATOR = TraceContextTextMapPropagator()


def otlp_tracer(endpoint: str, sample_ratio: float, service_name: str) -> "OtelTracer":
    """A tracer with the settings of `observability.traces`. A thread sends spans in batches; a full queue drops them.

    The exporter's environment variables are in effect (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE).
    """
    exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)
    return OtelTracer(BatchSpanProcessor(exporter), sample_ratio, _resource(service_name))


def _resource(service_name: str) -> dict[str, str]:
    """The resource attributes: in a Serve replica, a service name such as `skim-target` and the replica's id."""
    try:
        replica = serve.get_replica_context()
    except RayServeException:
        return {"service.name": service_name}
    return {
        "service.namespace": service_name,
        "service.name": f"{service_name}-{replica.deployment}",
        "service.instance.id": replica.replica_id.unique_id,
    }


class OtelTracer:
    """Tracer over an OpenTelemetry provider. sample_ratio: for traces that begin here; others follow their parent."""

    def __init__(
        self, processor: SpanProcessor, sample_ratio: float = 1.0, resource: Mapping[str, str] | None = None
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(sample_ratio),
            resource=Resource.create(resource),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("skim")

    def span(self, name: str, headers: Mapping[str, str] | None) -> AbstractContextManager[Span]:
        if headers is None:
            return nullcontext(NO_SPAN)
        parent = _PROPAGATOR.extract(headers, Context())
        return OtelSpan(self._tracer, name, parent, "server", headers.get(REQUEST_ID))

    def close(self) -> None:
        # By itself the provider waits half a minute, and again when the interpreter exits.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_S)


class OtelSpan:
    """Span over an OpenTelemetry span. It begins when it is created."""

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        parent: Context,
        kind: Kind,
        request_id: str | None,
        begin_ns: int = 0,
        above: "OtelSpan | None" = None,
    ) -> None:
        self._tracer, self._request_id, self._above = tracer, request_id, above
        self._children = 0
        self._begin_ns = begin_ns or time.time_ns()
        self._monotonic_ns = time.monotonic_ns()  # the clock may be set while the span lasts
        self._span = tracer.start_span(name, parent, _KINDS[kind], start_time=self._begin_ns)
        self._context = trace.set_span_in_context(self._span, Context())
        self.recording = self._span.is_recording()
        if request_id is not None:
            self._span.set_attribute("skim.request_id", request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # When a client hangs up, vLLM's front cancels its calls and returns at once; their spans are still open here.
        if self._children or isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._cancel()
        elif kind is not None:
            self.fail(kind.__name__)
        if self._above is not None:
            self._above._children -= 1
        self._span.end(self._at(self.now()))

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self._request_id is None else {REQUEST_ID: self._request_id}
        _PROPAGATOR.inject(headers, self._context)
        return headers

    def child(self, name: str, kind: Kind = "internal") -> "OtelSpan":
        self._children += 1
        begin = self._at(self.now())
        return OtelSpan(self._tracer, name, self._context, kind, self._request_id, begin, above=self)

    def part(self, name: str, begin_ms: float, end_ms: float) -> None:
        if self.recording:
            begin, end = self._at(max(begin_ms, 0.0)), self._at(max(begin_ms, end_ms, 0.0))
            OtelSpan(self._tracer, name, self._context, "internal", self._request_id, begin)._span.end(end)

    def now(self) -> float:
        return (time.monotonic_ns() - self._monotonic_ns) / 1e6

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def event(self, name: str, at_ms: float) -> None:
        self._span.add_event(name, timestamp=self._at(at_ms))

    def fail(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(trace.StatusCode.ERROR)

    def _cancel(self) -> None:
        """Mark this span and its open ancestors as cancelled."""
        if self._span.is_recording():
            self._span.set_attribute("skim.cancelled", True)
            if self._above is not None:
                self._above._cancel()

    def _at(self, ms: float) -> int:
        return self._begin_ns + int(ms * 1e6)
