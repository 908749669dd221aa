"""Spans of a request, as the router and the pools call them; where traces are off they are nothing at all.

`tracing_otlp` beside this file makes the real ones. It alone imports OpenTelemetry, and it is imported only where a
deployment asks for traces.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

Attributes = Mapping[str, str | bool | int | float | list[str]]
Kind = Literal["internal", "client", "server"]

REQUEST_ID = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate", REQUEST_ID)
"""What continues a trace elsewhere: the two headers of W3C Trace Context, and the id that log records have."""


class Span(Protocol):
    """One part of a request's way. It ends with its `with` block: an exception marks it as failed, by its class alone,
    and a cancelled one as cancelled. Nobody puts text of a prompt or an answer into it.

    recording: false where traces are off or this request is not sampled. Times are milliseconds since its start.
    """

    recording: bool

    @property
    def headers(self) -> dict[str, str] | None:
        """TRACE_HEADERS for whoever works on; None where traces are off."""
        ...

    def child(self, name: str, kind: Kind = "internal") -> AbstractContextManager["Span"]:
        """A span below this one."""
        ...

    def part(self, name: str, begin_ms: float, end_ms: float) -> None:
        """A span below this one that is over already."""
        ...

    def now(self) -> float: ...

    def set(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def event(self, name: str, at_ms: float) -> None: ...

    def fail(self, error: str) -> None:
        """Mark it as failed. error: a class of errors, never a message, which may quote what a client sent."""
        ...


class Tracer(Protocol):
    """What begins spans in a process."""

    def span(self, name: str, headers: Mapping[str, str] | None) -> AbstractContextManager[Span]:
        """A span of kind server, below the one whose `headers` came with the request, or the first one of a trace.

        None is a request that nobody traces: it gets no span.
        """
        ...

    def close(self) -> None:
        """Send what is left; a collector that does not answer is not waited for."""
        ...


class _NoSpan:
    """Span where traces are off."""

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
    """Tracer where traces are off."""

    def span(self, name: str, headers: Mapping[str, str] | None) -> AbstractContextManager[Span]:
        return _NOTHING

    def close(self) -> None:
        pass


NO_SPAN: Span = _NoSpan()
NO_TRACER: Tracer = _NoTracer()
_NOTHING = nullcontext(NO_SPAN)


def create_tracer(settings: Mapping[str, Any] | None) -> Tracer:
    """settings: endpoint, sample_ratio and service_name of `observability.traces`; None: traces are off."""
    if settings is None:
        return NO_TRACER
    from actors.observability.tracing_otlp import otlp_tracer

    return otlp_tracer(**settings)
