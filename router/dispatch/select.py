"""The stage of a prompt at the speculator pool: its selection, within a budget if it has one, and its explanation."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from http import HTTPStatus

import numpy as np
import numpy.typing as npt
from opentelemetry.trace import SpanKind

from actors.observability.spans import note_selection
from actors.observability.tracing import child_span, ending, headers_of
from kv_transfer.layout import TextLayout
from kv_transfer.limits import check_speculator_length
from kv_transfer.messages import Envelope, Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from router.admission.ticket import Ticket
from router.dispatch.apart import apart
from router.dispatch.parts import Parts
from router.dispatch.state import Outcome
from router.dispatch.telemetry import SELECT
from router.explain.explained import Explained
from router.explain.log import Entry
from router.options.errors import InvalidOptionError, RefusedError
from router.options.request import PrefillOptions
from router.pools.availability import PoolDownError
from skim_common.errors import DeadlineError, InvalidRequestError, MessageSizeError, SkimError

logger = logging.getLogger(__name__)

OR_DENSE = 'shorten the prompt or send "speculative_prefill": false'
OR_LEXICAL = 'shorten the text or send "speculative_prefill": {"selector": "lexical"}'
MAX_TOKENS_KEPT = "max_tokens_kept"
"""The field of a request with the budget."""


async def select(parts: Parts, outcome: Outcome, ticket: Ticket) -> Selection | None:
    """The selection of a prompt, which gets the units of its text.

    None if the prompt runs dense, see `outcome.reason`: the selection failed or was late, or, under `auto`, the
    speculator cannot read the prompt. Raises SkimError.
    """
    prepared, options, speculator = outcome.prepared, outcome.prepared.options, parts.pools.speculator
    try:
        if speculator and options.selector != "lexical" and prepared.forecast.windows is None:
            advice = OR_DENSE if prepared.prompt.answers else OR_LEXICAL
            check_speculator_length(prepared.size, options.tokens_ahead, speculator, advice)
        outcome.prepared = await apart(prepared.prompt.rendered.length, prepared.with_units)
        return await _ask(parts, outcome, ticket)
    except InvalidRequestError:
        if options.enabled != AUTO or not prepared.prompt.answers:
            raise
        outcome.reason = "speculator-limit"
        return None


async def _ask(parts: Parts, outcome: Outcome, ticket: Ticket) -> Selection | None:
    prepared, sent = outcome.prepared, time.perf_counter()
    try:
        selection = await _from_pool(parts, outcome)
    except (InvalidRequestError, DeadlineError):
        raise
    except MessageSizeError:
        message = f"the prompt's {prepared.size} tokens and their units are more than one selection can carry"
        raise InvalidRequestError(f"{message}; send the text in parts, each as a text of its own") from None
    except (TimeoutError, SkimError) as error:
        late, down = isinstance(error, TimeoutError), isinstance(error, PoolDownError)
        outcome.reason = f"speculator-{'timeout' if late else 'down' if down else 'error'}"
        problem = f"no selection in {parts.settings.select_timeout_s:g} s" if late else error
        effect = "runs dense" if prepared.prompt.answers else "fails"
        logger.warning("request %s %s: %s", prepared.request_id, effect, problem)
        return None
    elapsed_ms = 1e3 * (time.perf_counter() - sent)
    computing_ms = sum(selection.timings.values()) - selection.timings.get("queue", 0.0)
    parts.admission.selected(ticket, elapsed_ms - computing_ms, drafts=selection.kept.session is not None)
    outcome.selected(selection, prepared.options, elapsed_ms)
    parts.forecaster.selected(prepared.forecast, selection, prepared.options)
    return selection


async def _from_pool(parts: Parts, outcome: Outcome) -> Selection:
    prepared, prompt, deadline = outcome.prepared, outcome.prepared.prompt, outcome.call.request.deadline
    decode = prepared.decode if prepared.uses_drafts else None
    with ending(child_span(outcome.call.span, SELECT, SpanKind.CLIENT)) as span:
        request = SelectRequest(
            prepared.wire_id,
            prompt.rendered.token_ids,
            prepared.options.selection,
            prepared.layout,
            cache_salt=prompt.cache_salt,
            decode=decode,
            envelope=Envelope(headers_of(span), prepared.affinity, deadline.left_ms),
        )
        try:
            async with asyncio.timeout(parts.settings.select_timeout_s):
                selection = await parts.pools.select(request, outcome.admit, prompt.answers)
        except (asyncio.CancelledError, TimeoutError):
            # The speculator may have selected already. Nobody takes the reply, which names the session.
            if decode is not None:
                parts.background.start(parts.pools.end_session(SessionHandle("", request.request_id)))
            raise
        note_selection(span, request.request_id, selection)
        return selection


def explain(parts: Parts, outcome: Outcome, selection: Selection) -> None:
    """Hold the selection for the explain view."""
    prepared, timings, call = outcome.prepared, dict(outcome.timings), outcome.call
    decision = {"reason": outcome.reason, "catch_up": outcome.catch_up_state}
    decision |= {"placed": str(outcome.notes["placed"])} if "placed" in outcome.notes else {}
    outcome.messages = prepared.prompt.rendered.message_spans
    explained = Explained(selection, prepared.options.selection, prepared.layout, timings, decision)
    parts.log.add(prepared.request_id, Entry(prepared.size, explained), call.request.key, call.request_id)


def check_loss(parts: Parts, outcome: Outcome, selection: Selection) -> None:
    """Raise RefusedError for a prompt that would lose tokens if its request does not want that."""
    if outcome.prepared.options.lossy != "refuse" or not outcome.dropped_tokens:
        return
    if selection.kept.session is not None:
        parts.background.start(parts.pools.end_session(selection.kept.session))
    raise RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "UnprocessableEntityError",
        f"{outcome.dropped_tokens} of the prompt's {outcome.prompt_tokens} tokens would be dropped, which"
        " speculative_prefill.lossy refuses: send enabled false to have all of it read, lossy allow, or a shorter"
        " prompt",
    )


@dataclass(frozen=True, slots=True, eq=False)
class TokenBudget:
    """most: tokens. counted: bool [M], the tokens of the prompt that count."""

    most: int
    counted: npt.NDArray[np.bool_]

    def limit(self, options: PrefillOptions, layout: TextLayout) -> PrefillOptions:
        """The options with which the speculator keeps about so many tokens at most: it ranks by more than the units'
        scores. Raises InvalidOptionError if more are always kept."""
        fixed = layout.fixed(self.counted.size, options.protect_last)
        always, free = int((fixed & self.counted).sum()), int((~fixed).sum())
        if always > self.most:
            message = f"{MAX_TOKENS_KEPT} is {self.most}, but {always} tokens are always kept; raise it or protect less"
            raise InvalidOptionError(message, MAX_TOKENS_KEPT)
        share = max(self.most - always, 1) / max(free, 1)
        if share >= 1:
            return options
        least = min(options.min_keep, share)
        if options.fixed_rate is not None:
            rate = min(options.fixed_rate, share)
            return options.model_copy(update={"keep_rate": rate, "min_keep": least, "max_keep": None})
        largest = options.largest_share if options.keep_rate == AUTO else options.max_keep or 1.0
        return options.model_copy(
            update={"keep_rate": AUTO, "min_keep": least, "max_keep": max(least, min(largest, share))}
        )

    def trim(self, selection: Selection, options: PrefillOptions, layout: TextLayout) -> Selection:
        """The selection without the units of the lowest scores that are too many. options: it was made by them."""
        kept, scores = selection.kept, selection.unit_scores
        is_kept = np.zeros(self.counted.size, bool)
        is_kept[kept.positions] = True
        over = int((is_kept & self.counted).sum()) - self.most
        if over <= 0:
            return selection
        starts = layout.unit_starts(self.counted.size, options)
        if scores is None or scores.size != starts.size:
            message = "the speculator told no scores of this prompt's units"
            raise SkimError(f"{message}; send the request without {MAX_TOKENS_KEPT}")
        units = np.repeat(np.arange(starts.size), np.diff(starts, append=self.counted.size))
        free = is_kept & self.counted & ~layout.fixed(self.counted.size, options.protect_last)
        sizes = np.bincount(units[free], minlength=starts.size)
        order = np.argsort(scores, kind="stable")
        dropped = order[: int(np.searchsorted(np.cumsum(sizes[order]), over)) + 1]
        rest = is_kept & ~(free & np.isin(units, dropped))
        weights = scores.astype(np.float64)[units]
        share = float(weights[rest].sum() / (weights[is_kept].sum() or 1.0))
        left = rest[kept.positions]
        prompt = replace(kept, token_ids=kept.token_ids[left], positions=kept.positions[left])
        return replace(selection, kept=prompt, coverage=selection.coverage * share)
