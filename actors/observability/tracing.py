"""Trace spans over OpenTelemetry's API. Traces that are off have one span, which does nothing.

The SDK and the exporter are in `tracing_otlp`, which is imported only if the deployment file asks for traces. Parents
are always passed explicitly, never by a context variable, because an async generator may end in another context than
the one it began in.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | bool | int | float | list[str]]
Kind = Literal["internal", "client", "server"]

REQUEST_ID = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate", REQUEST_ID)
"""Headers that continue a trace in another process: W3C Trace Context, and the request id of the log records."""

CLOSE_S = 5.0
"""How long a stopping replica waits until its last spans are sent, in seconds."""

_KINDS = {kind: trace.SpanKind[kind.upper()] for kind in ("internal", "client", "server")}
_PROPAGATOR = TraceContextTextMapPropagator()


class Span:
    """One timed part of a request. It begins when it is created and ends with its `with` block. An exception marks it
    as failed, with the exception's class only; a cancellation marks it as cancelled. It must never contain text of a
    prompt or an answer.

    recording: False if traces are off or this request is not sampled. Times are milliseconds since the span's start.
    """

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        parent: Context,
        kind: Kind,
        request_id: str | None,
        begin_ns: int = 0,
        above: "Span | None" = None,
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
    def headers(self) -> dict[str, str] | None:
        """TRACE_HEADERS for the next process; None if traces are off."""
        if self is NO_SPAN:
            return None
        headers = {} if self._request_id is None else {REQUEST_ID: self._request_id}
        _PROPAGATOR.inject(headers, self._context)
        return headers

    def child(self, name: str, kind: Kind = "internal") -> "Span":
        """Start a child span."""
        if self is NO_SPAN:
            return self
        self._children += 1
        begin = self._at(self.now())
        return Span(self._tracer, name, self._context, kind, self._request_id, begin, above=self)

    def part(self, name: str, begin_ms: float, end_ms: float) -> None:
        """Add a child span that has already ended."""
        if self.recording:
            begin, end = self._at(max(begin_ms, 0.0)), self._at(max(begin_ms, end_ms, 0.0))
            Span(self._tracer, name, self._context, "internal", self._request_id, begin)._span.end(end)

    def now(self) -> float:
        return (time.monotonic_ns() - self._monotonic_ns) / 1e6

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def event(self, name: str, at_ms: float) -> None:
        self._span.add_event(name, timestamp=self._at(at_ms))

    def fail(self, error: str) -> None:
        """Mark the span as failed. error: the name of an error class; a message might quote the client's text."""
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


NO_SPAN = Span(trace.NoOpTracer(), "", Context(), "internal", None)
"""The span of what is not traced."""


class Tracer:
    """Starts spans in a process. provider: None if traces are off."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        self._provider = provider

    def span(self, name: str, headers: Mapping[str, str] | None) -> Span:
        """Start a span of kind server: a child of the span in `headers`, or the first span of a new trace.

        headers None: the request is not traced and gets a no-op span.
        """
        if self._provider is None or headers is None:
            return NO_SPAN
        parent = _PROPAGATOR.extract(headers, Context())
        return Span(self._provider.get_tracer("skim"), name, parent, "server", headers.get(REQUEST_ID))

    def close(self) -> None:
        """Send the remaining spans. Does not wait for a collector that does not answer."""
        if self._provider is not None:
            # By itself the provider waits half a minute, and again when the interpreter exits.
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            sending.join(CLOSE_S)


NO_TRACER = Tracer()
"""The tracer if traces are off."""


def create_tracer(settings: Mapping[str, Any] | None) -> Tracer:
    """settings: endpoint, sample_ratio and service_name of `observability.traces`; None means that traces are off."""
    if settings is None:
        return NO_TRACER
    from actors.observability.tracing_otlp import otlp_provider

    return Tracer(otlp_provider(**settings))
