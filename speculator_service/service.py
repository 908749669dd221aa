"""Makes a selection: checks the request, scores the prompt, chooses what to keep, returns the kept prompt."""

import asyncio
import logging
import time
from dataclasses import replace

import numpy as np

from kv_transfer.arrays import Int32Array, mask_of
from kv_transfer.drafts import UNDRAFTED
from kv_transfer.layout import TextLayout
from kv_transfer.messages import KeptPrompt, Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import ModelInfo
from speculator_service.drafting import DraftService
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.reading import Reading, apart, read_again, read_in_windows
from speculator_service.selection.extension import Extended, KnownPrefix, Prompt, extend
from speculator_service.selection.passages import Masses, lexical_importance, passage_importance, with_lexical
from speculator_service.selection.records import MAX_TOKENS, Record, Records
from speculator_service.selection.select import coverage, select
from speculator_service.selection.units import unit_means

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 256
"""A prefix cache finds whole blocks of at most so many tokens."""

COUNTS = ("record_hits", "records_lost", "reused_tokens", "late_tokens", "compactions")
"""Of the reuse of records since the start, by the names of the speculator's metrics."""


class SpeculatorService:
    """Makes selections with any speculator engine. Calls may run concurrently; the engine batches them.

    A prompt that begins like an earlier one extends what was kept for that one (`selection.records`).
    """

    def __init__(
        self, engine: SpeculatorEngine, address: str | None = None, drafts: DraftService | None = None
    ) -> None:
        """address: host:port of this replica's draft channel. With it, requests with decode options keep a session,
        which begins in `drafts`. There are as many records as the engine's prefix cache has room for.
        """
        self.engine = engine
        self.address = address if engine.supports_drafts else None
        self.records = Records(engine.info.cache_tokens or MAX_TOKENS)
        self._drafts = drafts
        self._counts = dict.fromkeys(COUNTS, 0)
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    async def select(self, request: SelectRequest) -> Selection:
        """Score the prompt [M] and select by the request's options. Cancelling this call aborts it in the engine, and
        leaves no session. The selection names no session if there is no room for one more. Raises InvalidRequestError,
        EngineUnavailableError if the engine is dead, and SkimError for invalid scores.
        """
        reading = Reading.of(request, self.info)
        reading.check(self.info)
        context = self._draft_context(reading)
        try:
            selection = await self._select(reading, context)
        except BaseException:
            if context == "full":
                self._free(request.request_id)
            raise
        kept = selection.kept
        if self._drafts is None or kept.session is None or self._drafts.begin(kept, context, request.cache_salt):
            return selection
        return replace(selection, kept=replace(kept, session=None))

    def _draft_context(self, reading: Reading) -> str | None:
        """What a drafting session of this request reads, as `DecodeOptions.draft_context`; None: there is no session.

        A prompt that fills the engine's positions has none: no draft would fit behind it. One over the full prompt is
        of a prompt that was read as a whole for the scores; else one over the kept prompt takes its place.
        """
        decode, limit = reading.request.decode, min(self.info.max_model_len, self.info.max_position)
        if not self.address or decode is None or reading.request.size + UNDRAFTED >= limit:
            return None
        return "kept" if reading.is_lexical or reading.plan is not None else decode.draft_context

    def _free(self, session: str) -> None:
        """Close the engine's session, if it has one, in the background: the caller may be cancelled."""

        async def close() -> None:
            try:
                await self.engine.close_session(session)
            except Exception as error:
                logger.warning("a session without a selection was not closed: %s", error)

        task = asyncio.create_task(close())
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _select(self, reading: Reading, context: str | None) -> Selection:
        request = reading.request
        scores = await scores_of(self.engine, reading, keep_session=context == "full")
        start = time.perf_counter()
        kept, share = await self._choose(reading, scores)
        prompt = KeptPrompt(
            token_ids=request.token_ids[kept.positions],
            positions=kept.positions,
            context_length=request.size,
            look_ahead_tokens=np.array(scores.look_ahead_tokens, np.int32),
            session=SessionHandle(self.address, request.request_id) if self.address and context else None,
        )
        starts = request.layout.unit_starts(request.size, request.options)
        return Selection(
            prompt,
            share,
            scores.importance if request.return_importance else None,
            {**scores.timings, "select": (time.perf_counter() - start) * 1e3},
            kept.reused,
            scores.cached_tokens,
            unit_means(scores.importance, starts).astype(np.float32),
        )

    async def _choose(self, reading: Reading, scores: Scores) -> tuple[Extended, float]:
        """What is kept, and its share of the importance. Reads and writes the records."""
        request, regions = reading.request, _regions(reading.request.layout)
        fresh, share = await apart(request.size, _fresh_selection, reading, scores)
        if request.options.reuse != "on":
            return Extended(fresh, 0), share
        match, replaced, kept = self._find(reading, scores), None, Extended(fresh, 0)
        if match is not None:
            record, common = match
            same = record.options == request.options and record.regions == regions
            if same and np.array_equal(record.token_ids, request.token_ids):
                kept = Extended(record.positions, record.positions.size)
            else:
                kept = await apart(request.size, _extended, reading, scores, fresh, record, common)
            continues = common == record.token_ids.size and kept.reused == record.positions.size
            replaced = record if continues else None
            share = coverage(scores.importance, kept.positions)
            self._counts["record_hits"] += 1
            self._counts["reused_tokens"] += kept.reused
            self._counts["late_tokens"] += kept.late
            self._counts["compactions"] += kept.compacted
        added = request.token_ids, kept.positions, request.options, request.cache_salt
        self.records.add(*added, regions=regions, replaces=replaced)
        return kept, share

    def _find(self, reading: Reading, scores: Scores) -> tuple[Record, int] | None:
        """The record that this prompt extends, and the tokens that both share. One whose prefix the engine's cache lost
        is dropped."""
        request = reading.request
        match = self.records.find(request.token_ids, request.cache_salt)
        # What is cached of windows says nothing about the prompt's beginning.
        if match is None or not self.info.cache_tokens or reading.is_lexical or reading.plan is not None:
            return match
        # The engine may read the question again although it is in the cache. Its own tokenizer may count fewer tokens.
        questions = request.layout.final_questions(reading.droppable)
        expected = min([match[1], *(first for first, _ in questions)]) // 4 - BLOCK_TOKENS
        if scores.cached_tokens >= expected:
            return match
        self._counts["records_lost"] += 1
        self.records.drop(match[0])
        return None

    def stats(self) -> dict[str, int]:
        """Counts of the reuse of records, by the names of the speculator's metrics."""
        return {**self._counts, "records": len(self.records)}


async def scores_of(engine: SpeculatorEngine, reading: Reading, *, keep_session: bool = False) -> Scores:
    """The scores of the prompt [M] by the request's options: the speculator's attention, the words shared with the
    question (BM25), or their sum; with retrieval heads by passages.

    keep_session: as in ScoreRequest. Raises as `SpeculatorEngine.score`, InvalidRequestError for a lexical selection
    without words, and SkimError for scores that do not fit the prompt.
    """
    request = reading.request
    options, layout = request.options, request.layout
    has_words = options.granularity == "text" and layout.words.size > 0
    has_question = has_words and len(layout.questions) > 0
    if reading.is_lexical:
        if not has_question:
            raise InvalidRequestError(
                "speculative_prefill.selector lexical needs granularity text and a prompt of text with a question: send"
                " such a prompt, or set the selector to speculator"
            )
        return Scores(lexical_importance(layout, request.size), [], {"queue": 0.0, "speculate": 0.0})
    if reading.plan is not None:
        scores = await read_in_windows(engine, reading)
    else:
        asked = request.request_id, request.token_ids, options, request.cache_salt, keep_session
        scores = await engine.score(ScoreRequest(*asked, layout.final_questions(reading.droppable)))
    if scores.importance.shape != request.token_ids.shape:
        shapes = f"{scores.importance.shape} for a prompt of {request.token_ids.shape}"
        raise SkimError(f"the speculator's scores do not fit the prompt: {shapes}")
    if options.scoring == "heads" and has_words:
        return await _by_passages(engine, reading, scores)
    if not has_question:
        return scores
    words = lexical_importance(layout, request.size)
    return replace(scores, importance=with_lexical(scores.importance, words, reading.droppable))


async def _by_passages(engine: SpeculatorEngine, reading: Reading, scores: Scores) -> Scores:
    """The sum of heads and words by passages, after a second read of what several windows rank highest."""
    size, layout = reading.request.size, reading.request.layout
    first = Masses(scores.importance, reading.droppable)
    importance = await apart(size, passage_importance, first, layout)
    timings, began = dict(scores.timings), time.perf_counter()
    if (again := await read_again(engine, reading, importance)) is not None:
        importance = await apart(size, passage_importance, first, layout, again)
        timings["speculate"] = timings.get("speculate", 0.0) + 1e3 * (time.perf_counter() - began)
    return replace(scores, importance=importance, timings=timings)


def _fresh_selection(reading: Reading, scores: Scores) -> tuple[Int32Array, float]:
    """What `select` keeps of a prompt without a record, int32 [F], and its share of the importance."""
    layout, options = reading.request.layout, reading.request.options
    options = options.covering(int(reading.droppable.sum()))
    chosen, share = select(scores.importance, options, layout)
    if options.keep_rate != AUTO and options.coverage is not None:  # `select` bounds no such coverage
        least, share_of_least = select(scores.importance, options.least, layout)
        if least.size > chosen.size:
            chosen, share = least, share_of_least
    return chosen.astype(np.int32), share


def _extended(reading: Reading, scores: Scores, fresh: Int32Array, record: Record, common: int) -> Extended:
    """What is kept of a prompt that extends a record. fresh: as of `_fresh_selection`."""
    request = reading.request
    prompt = Prompt(scores.importance, fresh, request.options, request.layout)
    kept = extend(prompt, KnownPrefix(record.positions, record.token_ids.size, common))
    if kept.positions.size >= fresh.size:
        return kept
    # As many of the tokens that have no rule of their own stay as `min_keep` asks for.
    least, _ = select(scores.importance, request.options.least, request.layout)
    free = reading.droppable & ~mask_of(request.layout.rate_spans, request.size)
    enough = free[kept.positions].sum() >= free[least].sum()
    return kept if enough else Extended(fresh, 0, compacted=True)


def _regions(layout: TextLayout) -> tuple[bytes, ...]:
    """What of a layout has rules of its own, as `Record.regions`."""
    names = "protected", "rate_spans", "rates", "units", "indents", "links", "headings"
    return tuple(getattr(layout, name).tobytes() for name in names)
