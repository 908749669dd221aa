"""The router's trace spans: one for each HTTP request, and one for each call of its prompts to a pool."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from actors.observability.pool_spans import AnswerTally
from actors.observability.tracing import TRACE_HEADERS, Span, Tracer
from router.dispatch.state import CallState, Outcome

TOKENIZE, SELECT, GENERATE = "skim.router.tokenize", "skim.router.select", "skim.router.generate"

_OPERATIONS = {"/v1/completions": "text_completion", "/v1/select": "select"}
"""OpenTelemetry's gen_ai.operation.name by route; every other route that answers a prompt is `chat`."""


class TracedRequest:
    """One HTTP request. call: set when the options are read; its final content goes into the span."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.call: CallState | None = None
        self._status = 0
        self._answered = False

    def watched(self, send: Send) -> Send:
        """`send`, which also records the status and whether the response is complete."""
        if not self.span.recording:
            return send

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            self._answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        return watch

    def describe(self, scope: Scope, model: str) -> None:
        """Set the span's attributes. The route is the app's pattern, so that there are few different names."""
        route = getattr(scope.get("route"), "path", None)
        attributes: dict[str, str | int] = {"http.request.method": "POST"}
        if route is not None:
            attributes["http.route"] = route
            self.span.rename(f"POST {route}")
        if self._status:
            attributes["http.response.status_code"] = self._status
        self.span.set(attributes)
        if not self._answered:
            self.span.set({"skim.cancelled": True})
        prompts = self.call.prompts if self.call else []
        if prompts:
            operation = _OPERATIONS.get(str(route), "chat")
            names = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "skim", "gen_ai.request.model": model}
            self.span.set({**names, **_summary(prompts)})
        error = self.call.error if self.call else None
        if error is not None and error.status >= 500:
            self.span.fail(error.type)
        elif self._status >= 500:
            self.span.fail(str(self._status))


@contextmanager
def traced_request(tracer: Tracer, model: str, scope: Scope) -> Iterator[TracedRequest]:
    """The span of the HTTP request `scope`, a child of the client's span if it has one. model: the served name."""
    headers = Headers(scope=scope)
    with tracer.span("POST", {name: headers[name] for name in TRACE_HEADERS if name in headers}) as span:
        request = TracedRequest(span)
        try:
            yield request
        finally:
            if span.recording:
                request.describe(scope, model)


def note_tokenized(span: Span, prompt: Outcome) -> None:
    """Add the span of rendering and tokenizing the prompt: from the request's arrival until now."""
    if span.recording:
        now = span.now()
        span.part(TOKENIZE, now - prompt.timings["tokenize"], now)


def note_prompt(span: Span, request_id: str, prompt: Outcome, answer: AnswerTally) -> None:
    """Set the attributes of one prompt. request_id: the engines' id."""
    if span.recording:
        span.set({"skim.engine_request_id": request_id, **_summary([prompt]), **answer.attributes()})


def _summary(prompts: list[Outcome]) -> dict[str, str | int | float]:
    """Attributes of all prompts: counts are sums, modes and reasons are the different ones."""
    read, kept = (sum(getattr(p, name) for p in prompts) for name in ("prompt_tokens", "kept_tokens"))
    words = {name: sorted({getattr(p, name) for p in prompts} - {""}) for name in ("mode", "reason")}
    return {
        "gen_ai.usage.input_tokens": read,
        "gen_ai.usage.output_tokens": sum(p.answer_tokens for p in prompts),
        "skim.kept_tokens": kept,
        "skim.keep_rate": kept / read,
        **{f"skim.{name}": ", ".join(found) for name, found in words.items() if found},
    }
