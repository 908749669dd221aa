"""Drafters without a model, for trying a target: they know the answers, or draw from a table, and can lie."""

import asyncio
import zlib
from collections.abc import Callable

import numpy as np

from kv_transfer.channel_server import DraftServer
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow
from kv_transfer.messages import Int32Array

Drafting = Callable[[DraftRow, list[int]], Draft]
"""Drafts for a row, given the answer so far with the row's tokens."""


class FakeSpeculator:
    """A draft server whose sessions are the answers that it was told; `draft` says what it drafts.

    It knows the sessions in `known`, and those that are restored. stall_s: how long it thinks before each reply.
    """

    def __init__(self, draft: Drafting) -> None:
        self.draft = draft
        self.known: dict[str, list[int]] = {}
        self.restored: list[str] = []
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
        """Listen, on the same port as before if there was one."""
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
        for state in request.restored:
            self.known[state.session] = state.answer.tolist()
            self.restored.append(state.session)
        for session in request.closed:
            self.closed.append(session)
            self.known.pop(session, None)
        drafts, lost = [], []
        for row in request.rows:
            answer = self.known.get(row.session)
            if answer is None or row.position > len(answer):
                lost.append(row.session)
                continue
            answer[row.position :] = row.tokens.tolist()
            if row.max_drafts:
                drafts.append(self.draft(row, answer))
        return DraftReply(request.sequence, drafts, lost)


def knowing(answers: dict[str, list[int]], error_rate: float, vocab_size: int) -> Drafting:
    """Drafts the true answer of each session, each token wrong with probability `error_rate`."""
    rng = np.random.default_rng(0)

    def draft(row: DraftRow, answer: list[int]) -> Draft:
        tokens = np.array(answers[row.session][len(answer) : len(answer) + row.max_drafts], np.int32)
        wrong = rng.random(tokens.size) < error_rate
        tokens = np.where(wrong, rng.integers(16, vocab_size, tokens.size), tokens).astype(np.int32)
        return Draft(row.session, len(answer), tokens)

    return draft


def drawing(table: np.ndarray, *, told: np.ndarray | None = None) -> Drafting:
    """Samples from `table` [vocabulary, vocabulary], a distribution for each last token, cut to the top m.

    told: the table that q is said to come from, if not the true one. Draws depend on the session and place alone.
    """

    def draft(row: DraftRow, answer: list[int]) -> Draft:
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
        return Draft(row.session, len(answer), np.array(tokens, np.int32), ids_sent, probs_sent)

    return draft


def _top(distribution: np.ndarray, count: int) -> tuple[Int32Array, np.ndarray]:
    ids = np.argsort(distribution)[::-1][: count or 1].astype(np.int32)
    return ids, distribution[ids] / distribution[ids].sum()


def _renormalised(told: np.ndarray, tokens: list[int], answer: list[int], ids: Int32Array) -> np.ndarray:
    before = tokens[-2] if len(tokens) > 1 else answer[-1]
    return told[before, ids] / told[before, ids].sum()
