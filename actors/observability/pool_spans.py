"""The attributes of the two pools' spans: numbers of tokens and times, never text."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from actors.observability.tracing import Attributes, Span, Tracer
from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection
from skim_common.models.info import ModelInfo
from skim_common.models.source import public_name

SELECT = "skim.speculator.select"
FIRST_TOKEN = "skim.first_token"

DELTA = 1
"""SamplingParams.output_kind (vLLM's RequestOutputKind) for outputs with new tokens only; the engines' default."""


def note_selection(span: Span, request_id: str, selection: Selection) -> None:
    """Record what a selection kept. request_id: the engine's id of the request."""
    if not span.recording:
        return
    kept = selection.kept
    span.set(
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
    if not span.recording:
        return
    span.set(_model(info))
    begin = 0.0
    for name in ("queue", "speculate", "select"):
        end = begin + selection.timings.get(name, 0.0)
        span.part(f"skim.speculator.{'choose' if name == 'select' else name}", begin, end)
        begin = end


class AnswerTally:
    """Counts the output tokens of one request, if its span is recorded. sampling: as in GenerateRequest."""

    def __init__(self, span: Span, sampling: Mapping[str, Any]) -> None:
        self._counts = span.recording
        self._delta = sampling.get("output_kind", DELTA) == DELTA
        self._tokens: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def add(self, output: GenerateOutput) -> None:
        if not self._counts:
            return
        for completion in output.completions:
            known = self._tokens.get(completion.index, 0) if self._delta else 0
            self._tokens[completion.index] = known + int(completion.token_ids.size)
            if completion.finish_reason is not None:
                self._reasons[completion.index] = completion.finish_reason

    @property
    def tokens(self) -> int:
        """Output tokens of all `n` answers together."""
        return sum(self._tokens.values())

    def attributes(self) -> Attributes:
        reasons = [self._reasons[index] for index in sorted(self._reasons)]
        return {"gen_ai.usage.output_tokens": self.tokens, "gen_ai.response.finish_reasons": reasons}


class AnswerSpan:
    """A target replica's span of one answer, or of one leg of a split target."""

    def __init__(self, span: Span, request: GenerateRequest) -> None:
        self.span = span
        self.tally = AnswerTally(span, request.sampling)
        self._first_at: float | None = None

    def add(self, output: GenerateOutput) -> None:
        if not self.span.recording:
            return
        self.tally.add(output)
        if self._first_at is None:
            self._note_first(output)

    def _note_first(self, output: GenerateOutput) -> None:
        """Use the engine's own times if it has them: with FINAL_ONLY the output comes long after the first token."""
        queue = output.timings.get("queue", 0.0)
        self._first_at = queue + output.timings["prefill"] if "prefill" in output.timings else self.span.now()
        self.span.part("skim.target.queue", 0.0, queue)
        self.span.part("skim.target.prefill", queue, self._first_at)
        self.span.event(FIRST_TOKEN, self._first_at)
        self.span.set({"skim.cached_tokens": output.cached_tokens})

    def end(self) -> None:
        if self.span.recording and self._first_at is not None:
            self.span.part("skim.target.decode", self._first_at, self.span.now())
            self.span.set(self.tally.attributes())


@contextmanager
def answer_span(tracer: Tracer, request: GenerateRequest, info: ModelInfo) -> Iterator[AnswerSpan]:
    """A span around a target's work on `request`: skim.target.generate, or prefill_leg and decode_leg if split."""
    whole = "decode_leg" if request.kv_blocks is not None else "generate"
    leg = "prefill_leg" if request.prefill_only else whole
    with tracer.span(f"skim.target.{leg}", request.envelope.trace) as span:
        if span.recording:
            prompt = request.prompt
            span.set(
                {
                    **_model(info),
                    "skim.engine_request_id": request.request_id,
                    "gen_ai.usage.input_tokens": int(prompt.token_ids.size),
                    "skim.context_length": prompt.context_length,
                    "skim.decode_method": request.decode.method,
                }
            )
        answer = AnswerSpan(span, request)
        try:
            yield answer
        finally:
            answer.end()


def _model(info: ModelInfo) -> dict[str, str]:
    return {"gen_ai.request.model": public_name(info.path), "gen_ai.provider.name": "skim"}
