"""Ageing: large results of tools that are old shrink, in idle time, to what the questions asked since need of them.

The catch-up asks the speculator what is kept. A target that can shrink prompts in place reads the whole text, and then
drops whole blocks of it. Any other target reads what is left of the prompt and its answer. The conversation's next turn
then runs dense on what is left of its prompt, at the original positions.
"""

import asyncio
from dataclasses import replace

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Envelope, KeptPrompt, SelectRequest
from kv_transfer.options import AUTO
from kv_transfer.spans import mask_of, spans_of
from router.decision.aged_forms import (
    AgedForm,
    AgedForms,
    block_in_place,
    in_whole_blocks,
    is_worth_it,
    old_results,
)
from router.decision.catch_up import stays_dense
from router.decision.forecaster import Forecaster
from router.decision.guard import task_kind
from router.decision.rules import Decision
from router.dispatch.request import Prepared
from router.dispatch.selection import INLINE_CHARS
from router.dispatch.state import Outcome
from router.pools.interface import Pools
from router.prompt.citations import cited_spans
from router.prompt.tool_results import asked_after, tool_results

CITED_SHARE = 0.5
"""What was cited has at most half of what is kept of a result. The speculator chooses the rest."""
LEAST_RATE = 0.001
"""A rate is above 0. Of a result whose other parts are protected, what was cited can be all that is to be kept."""


class Ageing:
    """What one router knows of aged prompts."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster, self._forms = forecaster, AgedForms()

    def look(self, prepared: Prepared, outcome: Outcome, shrinks_by: int) -> None:
        """Note the aged form of a prompt, and which results are old after its answer. Neither, if all of the prompt is
        to be read: by a rule, for its task or because the request refuses losses. shrinks_by: of the target."""
        options, size = prepared.options, prepared.size
        auto = prepared.ruled.speculative and options.enabled == AUTO
        if options.age is None or not auto or options.lossy == "refuse":
            return
        results = tool_results(prepared.prompt.rendered, options)
        if not results or _needs_all(prepared, results[0].end):
            return
        may_drop = mask_of(old_results(results, options.age), size) & ~prepared.layout.fixed(size, options.protect_last)
        forecast = prepared.forecast
        outcome.form = self._forms.find(forecast.ids, forecast.hashes, options.age, may_drop)
        since = outcome.form.end if outcome.form else 0
        ages = old_results(results, options.age, since=since, later=1)
        if is_worth_it(ages, options.age, size, block_in_place(shrinks_by, outcome.form)):
            outcome.ages = ages

    def part(self, prepared: Prepared, form: AgedForm, choice: Decision) -> Prepared | None:
        """The prompt with the forecast of what its aged form leaves of it; None if it is to be skimmed by `choice`."""
        forecast = self._forecaster.of_part(prepared.forecast, form.kept(prepared.size))
        if choice.speculative and not stays_dense(choice, forecast.known_dense, int(forecast.ids.size)):
            return None
        return replace(prepared, forecast=forecast)

    def read(self, form: AgedForm, prepared: Prepared) -> None:
        """The target has read this form of a prompt."""
        self._forms.remember(form, prepared.forecast.ids, prepared.forecast.hashes)


def _needs_all(prepared: Prepared, place: int) -> bool:
    """Whether a task that was asked after the token `place` needs the whole text."""
    layout = prepared.layout
    since = layout.questions[layout.questions[:, 0] >= place]
    if prepared.advice.verdict != "dense" or not len(since):
        return False
    kind = task_kind(prepared.prompt.rendered.task_text(replace(layout, questions=since)))
    return kind is not None and kind.verdict == "dense"


def aged_prompt(prepared: Prepared, form: AgedForm) -> KeptPrompt:
    """What the target reads of the prompt."""
    kept = form.kept(prepared.size)
    return KeptPrompt(prepared.prompt.rendered.token_ids[kept], kept, prepared.size, kv_tag=form.kv_tag)


async def aged_form(
    pools: Pools, prepared: Prepared, ages: Int32Array, before: AgedForm | None, block: int
) -> AgedForm:
    """The aged form of a prompt in which the results `ages`, int32 [R, 2], are old now; what `before` drops stays
    dropped. block: whole blocks of so many tokens are dropped, unless it is 0. Cancelling this call ends the selection.
    Raises SkimError."""
    is_long = len(prepared.prompt.rendered.text or "") > INLINE_CHARS
    request = await asyncio.to_thread(_request, prepared, ages) if is_long else _request(prepared, ages)
    selection = await pools.select(request)
    dropped = request.droppable
    dropped[selection.kept.positions] = False
    importance = np.ones(prepared.size) if selection.importance is None else selection.importance.astype(np.float64)
    if block:
        dropped = in_whole_blocks(dropped, request.droppable, importance, ages, block)
    if before is not None:
        dropped |= mask_of(before.dropped, prepared.size)
    coverage = float(importance[~dropped].sum() / importance.sum()) if importance.any() else 1.0
    assert prepared.options.age is not None
    return AgedForm(prepared.options.age, spans_of(dropped), int(ages[-1, 1]), coverage)


def _request(prepared: Prepared, ages: Int32Array) -> SelectRequest:
    """All but the old results is kept, and of each of these its share, with what was cited of it."""
    options, spans, rendered = prepared.options, prepared.spans, prepared.prompt.rendered
    assert options.age is not None
    others = ~mask_of(ages, prepared.size) | mask_of(spans.layout.protected, prepared.size)
    asked = asked_after(rendered, int(ages[0, 1]))
    layout = replace(
        spans.layout,
        protected=spans_of(others),
        rate_spans=ages,
        rates=np.full(len(ages), options.age.keep, np.float32),
        questions=asked if len(asked) else spans.layout.questions,
    )
    layout = rendered.layout(options, spans._replace(layout=layout))
    return SelectRequest(
        f"{prepared.wire_id}-age",
        rendered.token_ids,
        options.selection.model_copy(update={"reuse": "off"}),
        _with_citations(prepared, layout, options.age.keep),
        return_importance=True,
        cache_salt=prepared.prompt.cache_salt,
        envelope=Envelope(affinity=prepared.affinity),
    )


def _with_citations(prepared: Prepared, layout: TextLayout, keep: float) -> TextLayout:
    """The layout with the cited units protected. They count in the share of their result: the rate of the rest of it is
    lower."""
    units = layout.unit_starts(prepared.size, prepared.options)
    spans = cited_spans(prepared.prompt.rendered, units, layout.rate_spans, CITED_SHARE * keep)
    if not spans:
        return layout
    may_drop, cited = ~mask_of(layout.protected, prepared.size), mask_of(spans, prepared.size)
    free, taken = (
        np.array([mask[first:end].sum() for first, end in layout.rate_spans.tolist()])
        for mask in (may_drop, may_drop & cited)
    )
    rates = ((keep * free - taken) / np.maximum(1, free - taken)).clip(LEAST_RATE, keep)
    return replace(layout, protected=spans_of(~may_drop | cited), rates=rates.astype(np.float32))
