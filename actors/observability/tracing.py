"""The interface for trace spans, and its no-op implementation for deployments without traces.

The real implementation is `tracing_otlp`. Only that file imports OpenTelemetry, and it is imported only if the
deployment file asks for traces.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

Attributes = Mapping[str, str | bool | int | float | list[str]]
Kind = Literal["internal", "client", "server"]

REQUEST_ID = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate", REQUEST_ID)
"""Headers that continue a trace in another process: W3C Trace Context, and the request id of the log records."""


class Span(Protocol):
    """One timed part of a request. It ends with its `with` block. An exception marks it as failed, with the exception's
    class only; a cancellation marks it as cancelled. It must never contain text of a prompt or an answer.

    recording: False if traces are off or this request is not sampled. Times are milliseconds since the span's start.
    """

    recording: bool

    @property
    def headers(self) -> dict[str, str] | None:
        """TRACE_HEADERS for the next process; None if traces are off."""
        ...

    def child(self, name: str, kind: Kind = "internal") -> AbstractContextManager["Span"]:
        """Start a child span."""
        ...

    def part(self, name: str, begin_ms: float, end_ms: float) -> None:
        """Add a child span that has already ended."""
        ...

    def now(self) -> float: ...

    def set(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def event(self, name: str, at_ms: float) -> None: ...

    def fail(self, error: str) -> None:
        """Mark the span as failed. error: the name of an error class; a message might quote the client's text."""
        ...


class Tracer(Protocol):
    """Starts spans in a process."""

    def span(self, name: str, headers: Mapping[str, str] | None) -> AbstractContextManager[Span]:
        """Start a span of kind server: a child of the span in `headers`, or the first span of a new trace.

        headers None: the request is not traced and gets a no-op span.
        """
        ...

    def close(self) -> None:
        """Send the remaining spans. Does not wait for a collector that does not answer."""
        ...


class _NoSpan:
    """The span if traces are off: it does nothing."""

    recording = False
    headers = None

    def child(self, name: str, kind: Kind = "internal") -> AbstractContextManager[Span]:
        return _NOTHING

    def now(self) -> float:
        return 0.0

    def _ignore(self, *args: Any) -> None:
        pass

    part = set = rename = event = fail = _ignore


class _NoTracer:
    """The tracer if traces are off."""

    def span(self, name: str, headers: Mapping[str, str] | None) -> AbstractContextManager[Span]:
        return _NOTHING

    def close(self) -> None:
        pass


NO_SPAN: Span = _NoSpan()
NO_TRACER: Tracer = _NoTracer()
_NOTHING = nullcontext(NO_SPAN)
