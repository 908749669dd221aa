"""The trace spans of a router's prompts, and what is counted of each when its mode is decided.

There is a span for each HTTP request, and one for each call of its prompts to a pool.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from actors.observability.metrics import Meter
from actors.observability.spans import AnswerTally
from actors.observability.tracing import TRACE_HEADERS, add_part, ending, fail, now_ms, server_span
from router.dispatch.state import CallState, Outcome

TOKENIZE, SELECT, GENERATE = "skim.router.tokenize", "skim.router.select", "skim.router.generate"

_OPERATIONS = {"/v1/completions": "text_completion", "/v1/select": "select"}
"""OpenTelemetry's gen_ai.operation.name by route; every other route that answers a prompt is `chat`."""


class ClientMetrics:
    """Is told what clients wait for. This one records nothing; `router.vllm_front.metrics` has one with vLLM's names.

    seconds: since the prompt arrived.
    """

    def began(self, prompt_tokens: int, seconds: float) -> None:
        """The target has made the first token for a prompt of so many tokens."""
        return

    def ended(self, prompt_tokens: int, seconds: float) -> None:
        """The answer to it is complete."""
        return


def record_decision(meter: Meter, prompt: Outcome) -> None:
    """Record a prompt when its mode is decided. A beam search records each of its steps."""
    meter.record("skim_router_requests_total", 1, mode=prompt.mode, reason=prompt.reason)
    meter.record("skim_router_prompt_tokens_total", prompt.prompt_tokens, mode=prompt.mode)
    meter.record("skim_router_kept_tokens_total", prompt.kept_tokens, mode=prompt.mode)
    if prompt.mode == "speculative":
        meter.record("skim_router_selections_total", 1, selector=prompt.prepared.options.selector)
        meter.record("skim_router_keep_rate", prompt.keep_rate)
        meter.record("skim_router_coverage", prompt.coverage)


class TracedRequest:
    """One HTTP request. call: set when the options are read; its final content goes into the span."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.call: CallState | None = None
        self._status = 0
        self._answered = self._left = False

    def watched(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Both, which also record the status, and whether the client leaves before the response is complete."""
        if not self.span.is_recording():
            return receive, send

        async def watch_receive() -> Message:
            message = await receive()
            self._left |= message["type"] == "http.disconnect" and not self._answered
            return message

        async def watch_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            self._answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        return watch_receive, watch_send

    def describe(self, scope: Scope, model: str) -> None:
        """Set the span's attributes. The route is the app's pattern, so that there are few different names."""
        route = getattr(scope.get("route"), "path", None)
        attributes: dict[str, str | int] = {"http.request.method": "POST"}
        if route is not None:
            attributes["http.route"] = route
            self.span.update_name(f"POST {route}")
        if self._status:
            attributes["http.response.status_code"] = self._status
        self.span.set_attributes(attributes)
        if self._left or not self._answered:
            self.span.set_attribute("skim.cancelled", True)
        if self.call and self.call.prompts:
            operation = _OPERATIONS.get(str(route), "chat")
            names = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "skim", "gen_ai.request.model": model}
            self.span.set_attributes({**names, **_summary(self.call.prompts)})
        error = self.call.error if self.call else None
        if error is not None and error.status >= 500:
            fail(self.span, error.type)
        elif self._status >= 500:
            fail(self.span, str(self._status))


@contextmanager
def traced_request(model: str, scope: Scope) -> Iterator[TracedRequest]:
    """The span of the HTTP request `scope`, a child of the client's span if it has one. model: the served name."""
    headers = Headers(scope=scope)
    trace = {name: headers[name] for name in TRACE_HEADERS if name in headers}
    with ending(server_span("POST", trace)) as span:
        request = TracedRequest(span)
        try:
            yield request
        finally:
            if span.is_recording():
                request.describe(scope, model)


def note_tokenized(span: Span, prompt: Outcome) -> None:
    """Add the span of rendering and tokenizing the prompt: from the request's arrival until now."""
    if span.is_recording():
        now = now_ms(span)
        add_part(span, TOKENIZE, now - prompt.timings["tokenize"], now)


def note_prompt(span: Span, request_id: str, prompt: Outcome, answer: AnswerTally) -> None:
    """Set the attributes of one prompt. request_id: the engines' id."""
    if span.is_recording():
        span.set_attributes({"skim.engine_request_id": request_id, **_summary([prompt]), **answer.attributes()})


def _summary(prompts: list[Outcome]) -> dict[str, str | int | float]:
    """Attributes of all prompts: counts are sums, modes and reasons are the different ones."""
    size, kept = sum(p.prompt_tokens for p in prompts), sum(p.kept_tokens for p in prompts)
    words = {name: sorted({getattr(p, name) for p in prompts} - {""}) for name in ("mode", "reason")}
    return {
        "gen_ai.usage.input_tokens": size,
        "gen_ai.usage.output_tokens": sum(p.answer_tokens for p in prompts),
        "skim.kept_tokens": kept,
        "skim.keep_rate": kept / size,
        **{f"skim.{name}": ", ".join(values) for name, values in words.items() if values},
    }
