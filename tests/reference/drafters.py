"""Drafters without a model, for tests of a target: they know the answers or sample from a table, and can lie."""

import asyncio
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.draft_channel import DraftServer
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from kv_transfer.messages import KeptPrompt

Drafting = Callable[[DraftRow, list[int]], Drafted]
"""Makes the drafts for a row from the answer so far, which includes the row's tokens."""


class FakeSpeculator:
    """A draft server that stores the answer of each session. draft: makes its drafts.

    It has the sessions in `known`. stall_s: pause before each reply, in seconds.
    """

    def __init__(self, draft: Drafting) -> None:
        self.draft = draft
        self.known: dict[str, list[int]] = {}
        self.closed: list[str] = []
        self.requests: list[DraftRequest] = []
        self.stall_s = 0.0
        self.port = 0
        self._server: DraftServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> "FakeSpeculator":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.die()

    async def start(self) -> None:
        """Listen; after a restart, on the same port as before."""
        self._server = DraftServer(self.handle, "127.0.0.1", self.port)
        self.port = await self._server.start()

    async def die(self) -> None:
        """Stop, and forget all sessions."""
        if self._server:
            await self._server.stop()
        self.known.clear()

    async def handle(self, request: DraftRequest) -> DraftReply:
        if self.stall_s:
            await asyncio.sleep(self.stall_s)
        self.requests.append(request)
        for session in request.closed:
            self.closed.append(session)
            self.known.pop(session, None)
        drafts = {}
        for row in request.rows:
            answer = self.known.get(row.session)
            if answer is None or row.position > len(answer):
                continue
            answer[row.position :] = row.tokens.tolist()
            if row.max_drafts:
                drafts[row.session] = self.draft(row, answer)
        return DraftReply(drafts)


class KnowingEngine:
    """The drafting half of a speculator engine that knows each session's answer: a share of its drafts is wrong."""

    max_sessions = max_session_tokens = math.inf
    shares_device = False

    def __init__(self, answers: dict[str, list[int]], error_rate: float, vocab_size: int) -> None:
        self._answers, self._error_rate, self._vocab_size = answers, error_rate, vocab_size
        self._rng = np.random.default_rng(0)

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        """There is nothing to read."""

    async def close_session(self, session: str) -> None:
        """There is nothing to free."""

    async def draft(self, session: str, answer: Int32Array, count: int, **options: Any) -> Drafted:
        true = self._answers[session][answer.size : answer.size + count]
        wrong = self._rng.random(len(true)) < self._error_rate
        return Drafted(np.where(wrong, self._rng.integers(16, self._vocab_size, len(true)), true).astype(np.int32))


def knowing(answers: dict[str, list[int]], error_rate: float, vocab_size: int) -> Drafting:
    """Drafts the true answer of each session, each token wrong with probability `error_rate`."""
    rng = np.random.default_rng(0)

    def draft(row: DraftRow, answer: list[int]) -> Drafted:
        tokens = np.array(answers[row.session][len(answer) : len(answer) + row.max_drafts], np.int32)
        wrong = rng.random(tokens.size) < error_rate
        tokens = np.where(wrong, rng.integers(16, vocab_size, tokens.size), tokens).astype(np.int32)
        return Drafted(tokens)

    return draft


def drawing(table: np.ndarray, *, told: np.ndarray | None = None) -> Drafting:
    """Samples from `table` [vocabulary, vocabulary], the distribution after each token, cut to the top m.

    told: the table of the reported q, if it is a lie. Random draws depend only on the session and the position.
    """

    def draft(row: DraftRow, answer: list[int]) -> Drafted:
        rng = np.random.default_rng([zlib.crc32(row.session.encode()), len(answer)])
        last, tokens, q_ids, q_probs = answer[-1], [], [], []
        for _ in range(row.max_drafts):
            ids, probs = _top(table[last], row.top_m)
            last = int(rng.choice(ids, p=probs))
            tokens.append(last)
            q_ids.append(ids)
            q_probs.append(probs if told is None else _renormalised(told, tokens, answer, ids))
        ids_sent = np.concatenate(q_ids).astype(np.int32) if row.top_m else np.empty(0, np.int32)
        probs_sent = np.concatenate(q_probs).astype(np.float32) if row.top_m else np.empty(0, np.float32)
        return Drafted(np.array(tokens, np.int32), ids_sent, probs_sent)

    return draft


def lies(vocab_size: int) -> dict[str, Drafting]:
    """Dishonest ways to draft, by name."""
    rng = np.random.default_rng(1)

    def random_tokens(row: DraftRow, answer: list[int]) -> Drafted:
        return Drafted(rng.integers(0, vocab_size, row.max_drafts, np.int32))

    def no_tokens_of_the_model(row: DraftRow, answer: list[int]) -> Drafted:
        return Drafted(np.array([2**31 - 1, -1][: row.max_drafts], np.int32))

    def too_many(row: DraftRow, answer: list[int]) -> Drafted:
        return Drafted(np.full(99, 20, np.int32))

    return {f.__name__: f for f in (random_tokens, no_tokens_of_the_model, too_many)}


def _top(distribution: np.ndarray, count: int) -> tuple[Int32Array, np.ndarray]:
    ids = np.argsort(distribution)[::-1][: count or 1].astype(np.int32)
    return ids, distribution[ids] / distribution[ids].sum()


def _renormalised(told: np.ndarray, tokens: list[int], answer: list[int], ids: Int32Array) -> np.ndarray:
    before = tokens[-2] if len(tokens) > 1 else answer[-1]
    return told[before, ids] / told[before, ids].sum()
