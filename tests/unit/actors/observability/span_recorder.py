"""Records the spans of an imagined process in memory."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from actors.observability import tracing


class SpanRecorder(SpanProcessor):
    """The spans of this process, from now on. spans: ended spans, in the order of their ends. open: number of open
    spans. Call `stop_traces` at the end.
    """

    def __init__(self, sample_ratio: float = 1.0) -> None:
        self.spans: list[ReadableSpan] = []
        self.open = 0
        self.closed = False
        tracing.record_spans(self, sample_ratio)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.open -= 1
        self.spans.append(span)

    def shutdown(self) -> None:
        self.closed = True

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans if span.name == name]
        return span

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


def parent_of(span: ReadableSpan, among: list[ReadableSpan]) -> ReadableSpan | None:
    """The span in `among` that `span` is a child of."""
    for other in among:
        if span.parent is not None and span.parent.span_id == other.context.span_id:
            assert span.context.trace_id == other.context.trace_id
            return other
    return None
