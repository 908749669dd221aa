"""Trace spans by OpenTelemetry's API, in a process that may have a tracer provider.

The provider is not OpenTelemetry's process-wide one, which vLLM sets when its own traces are on (vllm.tracing.otel).
Parents are passed explicitly, not by a context variable, because an async generator may end in another context than the
one it began in. A span must never contain text of a prompt or an answer.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

REQUEST_ID = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate", REQUEST_ID)
"""Headers that continue a trace in another process: W3C Trace Context, and the request id of the log records."""

TRACES_PATH = "/v1/traces"
"""The path for spans below the OTLP/HTTP endpoint (OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT)."""

CLOSE_S = 5.0
"""How long a stopping replica waits until its last spans are sent, in seconds."""

_ID_ATTRIBUTE = "skim.request_id"
_PROPAGATOR = TraceContextTextMapPropagator()
_provider: "TracerProvider | None" = None


def start_traces(settings: Mapping[str, Any] | None) -> bool:
    """settings: endpoint, sample_ratio and service_name of `observability.traces`. Returns whether traces are on. The
    exporter's environment variables are in effect (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE)."""
    if settings is None:
        return False
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(settings["endpoint"].rstrip("/") + TRACES_PATH)
    record_spans(BatchSpanProcessor(exporter), settings["sample_ratio"], _resource(settings["service_name"]))
    return True


def record_spans(
    processor: "SpanProcessor", sample_ratio: float = 1.0, resource: Mapping[str, str] | None = None
) -> None:
    """Record the spans of this process. sample_ratio: of traces that begin here; others follow their parent."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    global _provider
    sampler = ParentBasedTraceIdRatio(sample_ratio)
    _provider = TracerProvider(sampler=sampler, resource=Resource.create(resource), shutdown_on_exit=False)
    _provider.add_span_processor(processor)


def stop_traces() -> None:
    """Send the remaining spans. Does not wait for a collector that does not answer."""
    global _provider
    if _provider is not None:
        # By itself the provider waits half a minute, and again when the interpreter exits.
        sending = threading.Thread(target=_provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_S)
        _provider = None


def server_span(name: str, headers: Mapping[str, str] | None) -> Span:
    """A child of the span in `headers`, or the first span of a new trace. headers None: the request is not traced."""
    if _provider is None or headers is None:
        return INVALID_SPAN
    span = _provider.get_tracer("skim").start_span(name, _PROPAGATOR.extract(headers, Context()), SpanKind.SERVER)
    if REQUEST_ID in headers:
        span.set_attribute(_ID_ATTRIBUTE, headers[REQUEST_ID])
    return span


def child_span(parent: Span, name: str, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Span:
    """A span below `parent`, with its request id."""
    if _provider is None or parent is INVALID_SPAN:
        return INVALID_SPAN
    span = _provider.get_tracer("skim").start_span(name, set_span_in_context(parent), kind, start_time=start_ns)
    if (request_id := _request_id(parent)) is not None:
        span.set_attribute(_ID_ATTRIBUTE, request_id)
    return span


@contextmanager
def ending(span: Span) -> Iterator[Span]:
    """The span ends with this context. A cancellation marks it as cancelled, an error as failed."""
    try:
        yield span
    except (asyncio.CancelledError, GeneratorExit):
        span.set_attribute("skim.cancelled", True)
        raise
    except Exception as error:
        fail(span, type(error).__name__)
        raise
    finally:
        span.end()


def add_part(parent: Span, name: str, begin_ms: float, end_ms: float) -> None:
    """Add a child span that has already ended. Times: since the start of its parent."""
    if parent.is_recording():
        begin = moment(parent, max(begin_ms, 0.0))
        child_span(parent, name, start_ns=begin).end(max(begin, moment(parent, end_ms)))


def moment(span: Span, ms: float) -> int:
    """The time so many milliseconds after the start of a span that is recorded, in nanoseconds since the epoch."""
    return cast(int, cast(Any, span).start_time) + int(ms * 1e6)


def now_ms(span: Span) -> float:
    """Milliseconds since the start of a span that is recorded."""
    return (time.time_ns() - moment(span, 0.0)) / 1e6


def fail(span: Span, error: str) -> None:
    """Mark the span as failed. error: the name of an error class; a message might quote the client's text."""
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def headers_of(span: Span) -> dict[str, str] | None:
    """TRACE_HEADERS for the next process; None if traces are off."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, set_span_in_context(span))
    if headers and (request_id := _request_id(span)) is not None:
        headers[REQUEST_ID] = request_id
    return headers or None


def _request_id(span: Span) -> str | None:
    """The request id of a span; None for one that is not recorded."""
    return (getattr(span, "attributes", None) or {}).get(_ID_ATTRIBUTE)


def _resource(service_name: str) -> dict[str, str]:
    """The resource attributes: in a Serve replica, a service name such as `skim-target` and the replica's id."""
    from actors.ray_hooks.serve import this_replica

    if (replica := this_replica()) is None:
        return {"service.name": service_name}
    return {
        "service.namespace": service_name,
        "service.name": f"{service_name}-{replica.deployment}",
        "service.instance.id": replica.replica_id.unique_id,
    }
