"""The attributes of the two pools' spans: numbers of tokens and times, never text."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span

from actors.observability.tracing import add_part, ending, moment, now_ms, server_span
from kv_transfer.messages import DELTA, GenerateOutput, GenerateRequest, Selection
from skim_common.models.info import ModelInfo
from skim_common.models.source import public_name

SELECT, DRAFT = "skim.speculator.select", "skim.speculator.draft"
FIRST_TOKEN = "skim.first_token"


def note_selection(span: Span, request_id: str, selection: Selection) -> None:
    """Record what a selection kept. request_id: the engine's id of the request."""
    kept = selection.kept
    span.set_attributes(
        {
            "skim.engine_request_id": request_id,
            "gen_ai.usage.input_tokens": kept.context_length,
            "skim.kept_tokens": int(kept.token_ids.size),
            "skim.reused_tokens": selection.reused_tokens,
            "skim.keep_rate": kept.token_ids.size / kept.context_length,
            "skim.coverage": selection.coverage,
            "skim.look_ahead_tokens": int(kept.look_ahead_tokens.size),
        }
    )


def note_select_parts(span: Span, selection: Selection, info: ModelInfo) -> None:
    """Add a span for each part of a selection, from the engine's times: queue, speculate, select."""
    if not span.is_recording():
        return
    span.set_attributes(_model(info))
    begin = 0.0
    for timing, name in (("queue", "queue"), ("speculate", "speculate"), ("select", "choose")):
        end = begin + selection.timings.get(timing, 0.0)
        add_part(span, f"skim.speculator.{name}", begin, end)
        begin = end


class AnswerTally:
    """Counts the output tokens of one request, if its span is recorded. sampling: as in GenerateRequest."""

    def __init__(self, span: Span, sampling: Mapping[str, Any]) -> None:
        self.span = span
        self._delta = sampling.get("output_kind", DELTA) == DELTA
        self._tokens: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def add(self, output: GenerateOutput) -> None:
        if not self.span.is_recording():
            return
        for completion in output.completions:
            before = self._tokens.get(completion.index, 0) if self._delta else 0
            self._tokens[completion.index] = before + int(completion.token_ids.size)
            if completion.finish_reason is not None:
                self._reasons[completion.index] = completion.finish_reason

    @property
    def tokens(self) -> int:
        """Output tokens of all `n` answers together."""
        return sum(self._tokens.values())

    def attributes(self) -> dict[str, int | list[str]]:
        reasons = [self._reasons[index] for index in sorted(self._reasons)]
        return {"gen_ai.usage.output_tokens": self.tokens, "gen_ai.response.finish_reasons": reasons}


class AnswerSpan(AnswerTally):
    """A target replica's span of one answer, or of one leg of a split target."""

    _first_ms: float | None = None

    def add(self, output: GenerateOutput) -> None:
        super().add(output)
        if self._first_ms is None and self.span.is_recording():
            # The engine's own times, if it has them: with FINAL_ONLY the output comes long after the first token.
            queue = output.timings.get("queue", 0.0)
            self._first_ms = queue + output.timings["prefill"] if "prefill" in output.timings else now_ms(self.span)
            add_part(self.span, "skim.target.queue", 0.0, queue)
            add_part(self.span, "skim.target.prefill", queue, self._first_ms)
            self.span.add_event(FIRST_TOKEN, timestamp=moment(self.span, self._first_ms))
            self.span.set_attribute("skim.cached_tokens", output.cached_tokens)

    def end(self) -> None:
        if self._first_ms is not None:
            add_part(self.span, "skim.target.decode", self._first_ms, now_ms(self.span))
            self.span.set_attributes(self.attributes())


@contextmanager
def answer_span(request: GenerateRequest, info: ModelInfo) -> Iterator[AnswerSpan]:
    """A span around a target's work on `request`: skim.target.generate, or prefill_leg and decode_leg if split."""
    whole = "decode_leg" if request.kv_blocks is not None else "generate"
    leg = "prefill_leg" if request.prefill_only else whole
    with ending(server_span(f"skim.target.{leg}", request.envelope.trace)) as span:
        if span.is_recording():
            span.set_attributes(
                {
                    **_model(info),
                    "skim.engine_request_id": request.request_id,
                    "gen_ai.usage.input_tokens": int(request.prompt.token_ids.size),
                    "skim.context_length": request.prompt.context_length,
                    "skim.decode_method": request.decode.method,
                }
            )
        answer = AnswerSpan(span, request.sampling)
        try:
            yield answer
        finally:
            answer.end()


def _model(info: ModelInfo) -> dict[str, str]:
    return {"gen_ai.request.model": public_name(info.path), "gen_ai.provider.name": "skim"}
