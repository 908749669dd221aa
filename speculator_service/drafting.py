"""The drafter, for any engine: keeps the sessions of one replica and answers each step of a target with drafts."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array, no_numbers
from kv_transfer.drafts import GREEDY_BELOW, Drafted, DraftReply, DraftRequest, DraftRow
from kv_transfer.messages import KeptPrompt
from skim_common.errors import SessionLostError, SkimError
from speculator_service.engine import MAX_TOP, SpeculatorEngine

_log = logging.getLogger(__name__)

MAX_DRAFTS = 64
READ_BEHIND = 1 / 32
"""Of the kept prompt, in tokens of the answer. Then decoding has taken about as long as the read will, on CPUs."""

COUNTS = ("rounds", "draft_requests", "drafts", "opened", "refused", "evicted", "lost")
"""Since the start: messages with rows, rows in them, tokens sent, sessions, selections for whose session there was no
room, sessions closed because they were idle, rows whose session is not here."""

NOTHING = Drafted(no_numbers())


@dataclass(slots=True, eq=False)
class DrafterSession:
    """The drafter's side of one answer.

    used: time of the last row. prompt_tokens: of the prompt that the drafts continue. answer: int32 [A], the tokens
    that the target has accepted. sent: the drafts of the last reply, until the target answers them. unread: the kept
    prompt and its cache salt, until its prefill begins; opening: until it ends. work: the latest work of the engine for
    the session, which holds the lock. rounds: replies with drafts. drafts: tokens in these, and the look-ahead tokens.
    """

    id: str
    used: float
    prompt_tokens: int = 0
    answer: Int32Array = field(default_factory=no_numbers)
    sent: Drafted = NOTHING
    opening: bool = False
    unread: tuple[KeptPrompt, str | None] | None = None
    work: asyncio.Task[Any] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rounds: int = 0
    drafts: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """Of prompt and answer, which are in the KV cache."""
        return self.prompt_tokens + int(self.answer.size)

    def extend(self, row: DraftRow) -> None:
        """The answer ends with the row's tokens now: it may repeat known ones, or take some back. Raises
        SessionLostError if it leaves a gap."""
        position, tokens = row.position, row.tokens
        if not 0 <= position <= self.answer.size or (tokens < 0).any():
            raise SessionLostError(f"session {self.id}: {position} tokens are not where its answer can go on")
        new = tokens[self.answer.size - position :]
        if new.size:
            same = self.sent.tokens[: new.size] == new[: self.sent.tokens.size]
            self.accepted += int(np.cumprod(same).sum())
        self.answer = np.concatenate([self.answer[:position], tokens]).astype(np.int32, copy=False)
        self.sent = NOTHING

    def cancel(self) -> None:
        if self.work is not None:
            self.work.cancel()


class DraftService:
    """The drafting side of one speculator replica, over any engine. A session ends with its request, if it is idle for
    too long, or if the engine lost it, and not to make room for another one."""

    def __init__(
        self,
        engine: SpeculatorEngine,
        *,
        idle_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        on_end: Callable[[DrafterSession], None] = lambda session: None,
    ) -> None:
        """clock: seconds. on_end: called with each session that is closed."""
        self.counters = dict.fromkeys(COUNTS, 0)
        self._engine, self._idle_s = engine, idle_s
        self._clock, self._on_end = clock, on_end
        self._sessions: OrderedDict[str, DrafterSession] = OrderedDict()  # the least recently used first
        self._tasks: set[asyncio.Task[Any]] = set()

    def metrics(self) -> dict[str, int]:
        """The counters, and `sessions`: the current number of sessions."""
        return {**self.counters, "sessions": len(self._sessions)}

    def begin(self, prompt: KeptPrompt, context: str | None, cache_salt: str | None) -> bool:
        """Begin the session that `prompt` names; False if there is no room for one more.

        context: `full`, a session that the engine keeps; or `kept`, one over the kept prompt, whose rows get no drafts
        until the engine has read it. It reads now, while the target reads the same tokens. If both share a device, that
        would delay the first token, so it reads when the answer is `READ_BEHIND` of the prompt: a short answer ends
        before that, and costs no read.
        """
        assert prompt.session is not None
        name, look_ahead = prompt.session.id, prompt.look_ahead_tokens
        if context != "kept":
            return self.adopt(name, look_ahead, tokens=prompt.context_length)
        if not self.adopt(name, look_ahead, tokens=int(prompt.token_ids.size)):
            return False
        session, info = self._sessions[name], self._engine.info
        session.opening = True
        session.unread = prompt.in_reading_order(min(info.max_model_len, info.max_position)), cache_salt
        if not self._engine.shares_device:
            self._read_kept(session)
        return True

    def adopt(self, name: str, look_ahead_tokens: Int32Array, *, tokens: int = 0) -> bool:
        """Add a session that the engine keeps, with a prompt of so many tokens; False, and the engine's session is
        closed, if there is no room. The target's first drafts are the look-ahead tokens."""
        session = DrafterSession(name, self._clock(), tokens)
        self.evict()
        held = self._sessions.values()
        too_many = len(held) >= self._engine.max_sessions
        room = self._engine.max_session_tokens - sum(other.tokens for other in held)
        if held and (too_many or tokens > room):  # one always fits
            self.counters["refused"] += 1
            self._start(self._end(session))
            return False
        session.sent, session.drafts = Drafted(look_ahead_tokens), int(look_ahead_tokens.size)
        self._sessions[name] = session
        self._sessions.move_to_end(name)
        self.counters["opened"] += 1
        return True

    async def handle(self, request: DraftRequest) -> DraftReply:
        """Answer one step of a target. No row raises: a failed row, or one whose session is not here, gets no draft."""
        for session in request.closed:
            self._close(session)
        if not request.rows:
            return DraftReply()
        answers = zip(request.rows, await asyncio.gather(*map(self._row, request.rows)), strict=True)
        drafts = {row.session: drafted for row, drafted in answers if drafted is not None}
        self.counters["rounds"] += 1
        self.counters["draft_requests"] += len(request.rows)
        self.counters["drafts"] += sum(int(drafted.tokens.size) for drafted in drafts.values())
        self.evict()
        return DraftReply(drafts)

    def evict(self) -> None:
        """Close sessions that were idle for too long."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if self._clock() - oldest.used <= self._idle_s:
                return
            self._close(oldest.id)
            self.counters["evicted"] += 1

    async def close(self) -> None:
        """End every session and wait until the engine has freed them."""
        for session in list(self._sessions):
            self._close(session)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _read_kept(self, session: DrafterSession) -> None:
        assert session.unread is not None
        session.work, session.unread = self._start(self._open(session, *session.unread)), None

    async def _open(self, session: DrafterSession, prompt: KeptPrompt, cache_salt: str | None) -> None:
        try:
            async with session.lock:
                await self._engine.open_session(session.id, prompt, cache_salt=cache_salt)
            session.opening = False
        except Exception as error:
            self._forget(session)
            _report(session.id, error)

    def _forget(self, session: DrafterSession) -> None:
        if self._sessions.get(session.id) is session:
            self._close(session.id)

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._on_end(session)
            self._start(self._end(session))

    async def _end(self, session: DrafterSession) -> None:
        """Stop the engine's work for the session, then free the session."""
        try:
            session.cancel()
            async with session.lock:
                await self._engine.close_session(session.id)
        except Exception as error:
            _report(session.id, error)

    async def _row(self, row: DraftRow) -> Drafted | None:
        """Answer one row; None for no draft this time."""
        session = self._sessions.get(row.session)
        if session is None:
            self.counters["lost"] += 1
            return None
        session.used = self._clock()
        self._sessions.move_to_end(row.session)
        try:
            session.extend(row)
            if session.unread is not None and session.answer.size >= READ_BEHIND * session.prompt_tokens:
                self._read_kept(session)
            if session.opening:
                return None
            answer = session.answer
            session.cancel()  # an earlier row is out of date
            work = session.work = self._start(self._draft(session, answer, row))
            await asyncio.wait({work})
            if work.cancelled():
                return None
            drafted: Drafted = work.result()
        except SessionLostError:
            self.counters["lost"] += 1
            self._forget(session)
            return None
        except Exception as error:
            _report(row.session, error)
            return None
        if session.answer is not answer or not drafted.tokens.size:
            return None
        session.sent = drafted
        session.rounds += 1
        session.drafts += int(drafted.tokens.size)
        return drafted

    async def _draft(self, session: DrafterSession, answer: Int32Array, row: DraftRow) -> Drafted:
        """Drafts for a row; nothing if its parameters are invalid. Those without q are greedy, so that q is right."""
        count = min(row.max_drafts, MAX_DRAFTS)
        async with session.lock:
            if count <= 0 or row.top_m < 0 or not 0 <= row.temperature < math.inf:
                return NOTHING
            if row.temperature < GREEDY_BELOW or not row.top_m:
                return await self._engine.draft(session.id, answer, count)
            top_m = min(row.top_m, MAX_TOP)
            return await self._engine.draft(session.id, answer, count, temperature=row.temperature, top_m=top_m)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, and hold a reference to it until it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _report(session: str, error: Exception) -> None:
    """Log the error and continue: an answer never depends on drafts."""
    if isinstance(error, SkimError):
        _log.warning("no drafts for session %s: %s", session, error)
    else:
        _log.error("drafting failed for session %s", session, exc_info=error)
