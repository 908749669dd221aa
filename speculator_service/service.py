"""Makes a selection: checks the request, scores the prompt, chooses what to keep, returns the kept prompt."""

import asyncio
import logging
import time
from dataclasses import dataclass

import numpy as np
import torch

from kv_transfer.arrays import Int32Array, mask_of
from kv_transfer.drafts import UNDRAFTED
from kv_transfer.limits import check_selection
from kv_transfer.messages import KeptPrompt, Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from kv_transfer.windows import decided
from skim_common.models.info import ModelInfo
from speculator_service.apart import apart
from speculator_service.engine import Scores, SpeculatorEngine
from speculator_service.reading import reads_in_windows
from speculator_service.records import MAX_TOKENS, Record, RecordMatch, Records
from speculator_service.request_scores import scores_of
from speculator_service.scoring.extension import Extended, KnownPrefix, Prompt, extend
from speculator_service.scoring.selection import coverage, select
from speculator_service.scoring.units import unit_means

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 256
"""A prefix cache finds whole blocks of at most so many tokens."""


@dataclass
class RecordCounts:
    """Counts since the start, by the names of the speculator's metrics."""

    record_hits: int = 0
    records_lost: int = 0
    reused_tokens: int = 0
    late_tokens: int = 0
    compactions: int = 0


class SpeculatorService:
    """Makes selections with any speculator engine. Calls may run concurrently; the engine batches them.

    A prompt that begins like an earlier one extends what was kept for that one (`records`).
    """

    def __init__(
        self,
        engine: SpeculatorEngine,
        address: str | None = None,
        *,
        records: Records | None = None,
    ) -> None:
        """address: host:port of this replica's draft channel. With it, requests with decode options keep a session.

        An engine without `supports_drafts` keeps none. Its answers are drafted by their look-ahead tokens only.
        records: by default its own, as many as the engine's prefix cache has room for.
        """
        self.engine = engine
        self.address = address if engine.supports_drafts else None
        self.records = Records(engine.info.cache_tokens or MAX_TOKENS) if records is None else records
        self._counts = RecordCounts()
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> ModelInfo:
        """The engine's ModelInfo."""
        return self.engine.info

    async def select(self, request: SelectRequest) -> Selection:
        """Score the prompt [M] and select by the request's options. Cancelling this call aborts it in the engine.

        A call that does not return leaves no session. Raises InvalidRequestError for an invalid request,
        EngineUnavailableError if the engine is dead, SkimError if the engine returns invalid scores.
        """
        request = decided(request, self.info)
        check_selection(request, self.info)
        context = self.draft_context(request)
        try:
            return await self._select(request, context)
        except BaseException:
            if context:
                self._free(request.request_id)
            raise

    def draft_context(self, request: SelectRequest) -> str | None:
        """What a drafting session of this request reads, as `DecodeOptions.draft_context`; None: there is no session.

        A prompt that fills the engine's positions has none: no draft would fit behind it.
        The engine keeps a session over the full prompt, which it has read for the scores. The drafter opens a session
        over the kept prompt, while the target reads the same tokens. Windows leave no session over the full prompt.
        """
        decode, request = request.decode, decided(request, self.info)
        if not self.address or decode is None:
            return None
        limit = min(self.info.max_model_len, self.info.max_position)
        if request.size + UNDRAFTED >= limit:
            return None
        if reads_in_windows(self.engine, request):
            return "kept"
        context = decode.draft_context
        return None if context == "full" and request.options.selector == "lexical" else context

    def _free(self, session: str) -> None:
        """Close the engine's session, if it has one, in the background: the caller may be cancelled."""
        task = asyncio.create_task(self.engine.close_session(session))
        self._freeing.add(task)
        task.add_done_callback(self._freed)

    def _freed(self, task: asyncio.Task[None]) -> None:
        self._freeing.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("a session without a selection was not closed: %s", error)

    async def _select(self, request: SelectRequest, context: str | None) -> Selection:
        """context: by `draft_context`."""
        scores = await scores_of(self.engine, request, keep_session=context == "full")
        start = time.perf_counter()
        kept, share = await self._choose(request, scores)
        prompt = KeptPrompt(
            token_ids=request.token_ids[kept.positions],
            positions=kept.positions,
            context_length=request.size,
            look_ahead_tokens=np.array(scores.look_ahead_tokens, np.int32),
            session=SessionHandle(self.address, request.request_id) if self.address and context else None,
        )
        timings = {**scores.timings, "select": (time.perf_counter() - start) * 1e3}
        importance = scores.importance.to("cpu", torch.float32).numpy()
        starts = request.layout.unit_starts(importance.size, request.options)
        return Selection(
            prompt,
            share,
            importance if request.return_importance else None,
            timings,
            kept.reused,
            scores.cached_tokens,
            unit_means(importance, starts).astype(np.float32),
        )

    async def _choose(self, request: SelectRequest, scores: Scores) -> tuple[Extended, float]:
        """What is kept, and its share of the importance. Reads and writes the records."""
        fresh, share = await apart(request.size, _fresh_selection, request, scores)
        if request.options.reuse != "on":
            return Extended(fresh, 0), share
        found, replaced, kept = self._find(request, scores), None, Extended(fresh, 0)
        if found is not None:
            record = found.record
            if _answers(record, request):
                kept = Extended(record.positions, record.positions.size)
            else:
                kept = await apart(request.size, _extended, request, scores, fresh, found)
            whole = found.common == record.token_ids.size and kept.reused == record.positions.size
            replaced = record if whole else None
            share = coverage(scores.importance, torch.from_numpy(kept.positions).long())
            self._count(kept)
        self.records.add(
            request.token_ids,
            kept.positions,
            request.options,
            request.cache_salt,
            regions=_regions(request),
            replaces=replaced,
        )
        return kept, share

    def _find(self, request: SelectRequest, scores: Scores) -> RecordMatch | None:
        """The record that this prompt extends. One whose prefix the engine's cache lost is dropped."""
        found = self.records.find(request.token_ids, request.cache_salt)
        if found is None or not self.info.cache_tokens or request.options.selector == "lexical":
            return found
        if reads_in_windows(self.engine, request):
            return found  # what is cached of windows says nothing about the prompt's beginning
        # The engine may read the question again although it is in the cache. Its own tokenizer may count fewer tokens.
        asked = request.layout.final_questions(request.droppable)
        expected = min([found.common, *(first for first, _ in asked)]) // 4 - BLOCK_TOKENS
        if scores.cached_tokens >= expected:
            return found
        self._counts.records_lost += 1
        self.records.drop(found.record)
        return None

    def _count(self, kept: Extended) -> None:
        self._counts.record_hits += 1
        self._counts.reused_tokens += kept.reused
        self._counts.late_tokens += kept.late
        self._counts.compactions += kept.compacted

    def stats(self) -> dict[str, int]:
        """Counts of the reuse of records, by the names of the speculator's metrics."""
        return {**vars(self._counts), "records": len(self.records)}


def _fresh_selection(request: SelectRequest, scores: Scores) -> tuple[Int32Array, float]:
    """What `select` keeps of a prompt without a record, int32 [F], and its share of the importance."""
    options = request.options.covering(int(request.droppable.sum()))
    chosen, share = select(scores.importance, options, request.layout)
    if options.keep_rate != AUTO and options.coverage is not None:  # `select` bounds no such coverage
        least, of_least = select(scores.importance, options.least, request.layout)
        if least.numel() > chosen.numel():
            chosen, share = least, of_least
    return chosen.numpy().astype(np.int32), share


def _extended(request: SelectRequest, scores: Scores, fresh: Int32Array, found: RecordMatch) -> Extended:
    """What is kept of a prompt that extends a record. fresh: as of `_fresh_selection`."""
    options = request.options.covering(int(request.droppable.sum()))
    importance, record = scores.importance.to("cpu", torch.float32).numpy(), found.record
    prompt = Prompt(importance, fresh, options, request.layout)
    kept = extend(prompt, KnownPrefix(record.positions, record.token_ids.size, found.common))
    if kept.positions.size < fresh.size and not _keeps_enough(request, scores, kept.positions):
        return Extended(fresh, 0, compacted=True)
    return kept


def _keeps_enough(request: SelectRequest, scores: Scores, positions: Int32Array) -> bool:
    """Whether these are as many of the tokens that have no rule of their own as `min_keep` asks for."""
    least, _ = select(scores.importance, request.options.least, request.layout)
    free = request.droppable & ~mask_of(request.layout.rate_spans, request.size)
    return bool(free[positions].sum() >= free[least.numpy()].sum())


def _answers(record: Record, request: SelectRequest) -> bool:
    """Whether the record is of the same request: the same prompt with the same rules keeps the same tokens."""
    same = record.options == request.options and record.regions == _regions(request)
    return same and np.array_equal(record.token_ids, request.token_ids)


def _regions(request: SelectRequest) -> tuple[bytes, ...]:
    """The regions of a request with rules of their own, as `Record.regions`."""
    layout = request.layout
    names = "protected", "rate_spans", "rates", "units", "indents", "links", "headings"
    return tuple(getattr(layout, name).tobytes() for name in names)
