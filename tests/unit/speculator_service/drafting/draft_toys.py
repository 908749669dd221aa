"""A drafter and a target without models: each next-token distribution is a row of a table that tests can enumerate."""

import asyncio
import math
from collections import defaultdict

import numpy as np
import torch

from kv_transfer.drafts import Drafted, DraftRequest, DraftRow
from kv_transfer.messages import KeptPrompt
from skim_common.errors import SessionLostError
from skim_common.models.info import ModelInfo

PROMPT = KeptPrompt.dense([1, 2, 3])


def ids(*tokens):
    return np.array(tokens, np.int32)


def row(session, position, *tokens, max_drafts=3, **options):
    return DraftRow(session, position, ids(*tokens), max_drafts, **options)


async def settle():
    """Run the event loop until all other tasks have stopped or wait for this test."""
    for _ in range(50):
        await asyncio.sleep(0)


def sampled_from(rows, temperature, top_p=1.0):
    """Apply temperature and top-p to distributions [..., V]: keep the smallest set with mass top_p."""
    rows = rows ** (1 / temperature)
    rows = rows / rows.sum(-1, keepdims=True)
    order = np.argsort(-rows, axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, order, -1)
    # A token stays if the more probable tokens do not reach top_p.
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
    np.put_along_axis(rows, order, ordered, -1)
    return rows / rows.sum(-1, keepdims=True)


def drawn(p, random):
    """Sample an index from probabilities p [V]: Generator.choice without its checks."""
    cumulated = p.cumsum(dtype=np.float64)
    return int(cumulated.searchsorted(random.random() * cumulated[-1], side="right"))


class ToyEngine:
    """Drafts by table [V, V]: row t is the distribution after token t (row 0 for the first token).

    steps: how often each call yields to the event loop before it answers. overlaps: calls for a busy session.
    """

    max_sessions = max_session_tokens = math.inf
    shares_device = False

    def __init__(self, table, *, seed=0, steps=1):
        self.table = np.asarray(table)
        self.info = ModelInfo("toy", "Toy", len(table), "f", max_model_len=10**9, max_position=10**9, engine="toy")
        self.sessions = set()
        self.calls = defaultdict(int)
        self.drafted = []  # (session, answer) of each call of draft
        self.steps = steps
        self._tables = {0.0: self.table}  # by temperature
        self._random = np.random.default_rng(seed)
        self._busy = set()
        self.overlaps = 0

    async def open_session(self, session, prompt, *, cache_salt=None):
        await self._work("open", session)
        self.sessions.add(session)

    async def close_session(self, session):
        self.overlaps += session in self._busy
        self.sessions.discard(session)

    async def draft(self, session, answer, count, *, temperature=0.0, top_m=0):
        self.drafted.append((session, answer.tolist()))
        await self._work("draft", session)
        return self.next(answer, count, temperature, top_m)

    async def _work(self, call, session):
        if call != "open" and session not in self.sessions:
            raise SessionLostError(f"{session} is not here")
        self.overlaps += session in self._busy
        self._busy.add(session)
        self.calls[call] += 1
        try:
            for _ in range(self.steps):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the running step ends first
            raise
        finally:
            self._busy.discard(session)

    def distribution(self, tokens, temperature=0.0):
        if temperature not in self._tables:
            self._tables[temperature] = sampled_from(self.table, temperature)
        return self._tables[temperature][self.row(tokens)]

    def row(self, tokens):
        return tokens[-1] if tokens else 0

    def next(self, answer, count, temperature, top_m):
        tokens, q_ids, q_probs = answer.tolist(), [], []
        for _ in range(count):
            p = self.distribution(tokens, temperature)
            order = np.argsort(-p, kind="stable")
            top = order[:top_m] if temperature else order[:1]
            q = (p[top] / p[top].sum()).astype(np.float32)
            tokens.append(int(top[drawn(q, self._random)]))
            if top_m:
                q_ids.append(top)
                q_probs.append(q)
        return Drafted(
            np.array(tokens[answer.size :], np.int32),
            np.concatenate(q_ids).astype(np.int32) if q_ids else ids(),
            np.concatenate(q_probs) if q_probs else np.empty(0, np.float32),
        )


class RememberingEngine(ToyEngine):
    """Its next token depends on the whole answer, so a draft for another answer is always wrong."""

    def row(self, tokens):
        return sum((i + 1) * t for i, t in enumerate(tokens)) % len(self.table)


class ToyTarget:
    """Decodes one answer by table [V, V] and verifies drafts by rejection sampling (arXiv 2211.17192, algorithm 1).

    temperature, top_p: applied to each row of the table. The drafter gets only the temperature.
    """

    def __init__(self, session, table, seed, *, max_drafts, temperature=1.0, top_p=1.0):
        self.session, self.max_drafts, self.temperature = session, max_drafts, temperature
        self.table = sampled_from(np.asarray(table), temperature, top_p) if temperature else np.asarray(table)
        self.random = np.random.default_rng(seed)
        self.answer = []
        self.told = 0
        self.verify(None)

    def row(self):
        new = np.array(self.answer[self.told :], np.int32)
        top_m = len(self.table) if self.temperature else 0
        row = DraftRow(self.session, self.told, new, self.max_drafts, self.temperature, top_m)
        self.told = len(self.answer)
        return row

    def verify(self, draft):
        """One step: append the accepted drafts and one token of the target."""
        if draft is not None:
            q_rows = self._q(draft)
            for token, q in zip(draft.tokens.tolist(), q_rows, strict=True):
                p = self.distribution()
                if self.random.random() >= p[token] / q[token]:
                    rest = np.maximum(p - q, 0)
                    self.answer.append(self.choose(rest / rest.sum()))
                    return
                self.answer.append(token)
        self.answer.append(self.choose(self.distribution()))

    def distribution(self):
        p = self.table[self.answer[-1] if self.answer else 0]
        return p if self.temperature else np.eye(len(p))[p.argmax()]

    def choose(self, p):
        return drawn(p, self.random)

    def _q(self, draft):
        count, size = len(draft.tokens), len(self.table)
        q = np.zeros((count, size))
        if draft.q_ids.size:
            m = draft.q_ids.size // count
            np.put_along_axis(q, draft.q_ids.reshape(count, m), draft.q_probs.reshape(count, m), axis=1)
        else:
            q[np.arange(count), draft.tokens] = 1
        return q


async def decode(service, targets, tokens):
    """Let all targets decode `tokens` tokens each, one message per step."""
    while min(len(t.answer) for t in targets) < tokens:
        reply = await service.handle(DraftRequest([t.row() for t in targets]))
        for target in targets:
            target.verify(reply.drafts.get(target.session))


def chi_square_p(answers, table, block=3):
    """p value of the answers' token blocks, given the token before each block, against the enumerated probabilities.

    0 if a block occurs that has probability 0.
    """
    table = np.asarray(table)
    size = len(table)
    counts = np.zeros((size, *[size] * block))
    for answer in answers:
        for i in range(0, len(answer) - block, block):
            counts[tuple(answer[i : i + block + 1])] += 1
    statistic, freedom = 0.0, 0
    for before in range(size):
        expected = table[before]
        for _ in range(block - 1):
            expected = expected[..., None] * table
        possible = expected > 0
        if counts[before][~possible].any():
            return 0.0
        expected = expected[possible] * counts[before].sum()
        assert expected.min() >= 5, "too few samples for a chi-square test"
        statistic += ((counts[before][possible] - expected) ** 2 / expected).sum()
        freedom += expected.size - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))
