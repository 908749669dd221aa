"""Drafting sessions on transformers: each keeps a prompt's KV cache, rolls it back to the answer, and continues it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from kv_transfer.messages import Int32Array
from skim_common.errors import SessionLostError
from speculator_service.engine import Drafted


class CacheSession:
    """A KV cache that holds a prompt except its last token, followed by a tail: that token and part of an answer.

    Several answers are read and continued in one forward per step. Their tokens lie side by side after the cache.
    An attention mask lets each answer see its shared part of the cache and its own tokens (tree attention, SpecInfer,
    arXiv 2305.09781, section 4.2).
    """

    def __init__(self, cache: DynamicCache, tail: list[int], position: int, context_length: int, seed: int) -> None:
        """cache: holds the prompt and the tail. tail: begins with the prompt's last token, which has `position`.

        seed: for sampled drafts. It must be new: random draws that shaped the answer must not be repeated.
        """
        self._cache = cache
        self._tail = tail
        self._read = len(tail)  # number of the tail's tokens that are in the cache
        self._position = position
        self.context_length = context_length
        self._random = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def draft(
        self,
        model: Any,
        answers: list[Int32Array],
        count: int,
        temperature: float,
        top_m: int,
        alternatives: int,
        check: Callable[[], None],
    ) -> list[Drafted]:
        """Draft `count` tokens after each answer. check: called before each forward; it may raise to stop drafting."""
        tails = [[self._tail[0], *answer.tolist()] for answer in answers]
        shared = [self._common(tail) for tail in tails]
        if len(tails) == 1:
            self._crop_tail(shared[0])
        base = self._length
        columns = [torch.arange(base - self._read + n) for n in shared]  # cache indices that each answer sees
        unread = [tail[n:] for tail, n in zip(tails, shared, strict=True)]
        continuations = [_Continuation(temperature, top_m, alternatives, self._random) for _ in tails]
        try:
            for _ in range(count):
                check()
                first = [len(tail) - len(new) for tail, new in zip(tails, unread, strict=True)]
                logits = self._forward(model, unread, first, columns)
                unread = [[continuation.next(row)] for continuation, row in zip(continuations, logits, strict=True)]
                tails = [tail + new for tail, new in zip(tails, unread, strict=True)]
        finally:
            if len(tails) == 1:
                self._tail, self._read = tails[0], self._read + self._length - base
            else:
                self._crop(base)
        return [continuation.drafted() for continuation in continuations]

    @property
    def _length(self) -> int:
        return int(self._cache.get_seq_length())

    def _common(self, tail: list[int]) -> int:
        """Number of leading tokens of `tail` in the cache; never all, because the last token's logits are needed."""
        limit = min(self._read, len(tail) - 1)
        return next((i for i in range(limit) if self._tail[i] != tail[i]), limit)

    def _crop_tail(self, keep: int) -> None:
        self._crop(self._length - self._read + keep)
        self._read = keep

    def _crop(self, keep: int) -> None:
        if self._length > keep:
            self._cache.crop(keep - self._length)

    def _forward(
        self, model: Any, unread: list[list[int]], first: list[int], columns: list[torch.Tensor]
    ) -> torch.Tensor:
        """Read each answer's new tokens. Returns the logits after the last one: float32 [answers, vocabulary].

        first: for each answer, the index of its first new token in its tail. columns: for each answer the cache indices
        that it sees; the new tokens are added.
        """
        before = self._length
        total = sum(map(len, unread))
        mask = torch.zeros(total, before + total, dtype=torch.bool)
        positions, last, row = [], [], 0
        for i, (new, start) in enumerate(zip(unread, first, strict=True)):
            own = torch.arange(row, row + len(new))
            mask[own[:, None], columns[i]] = True
            mask[own[:, None], before + own] = torch.ones(len(new), len(new), dtype=torch.bool).tril()
            columns[i] = torch.cat([columns[i], before + own])
            positions += [self._position_at(start + k) for k in range(len(new))]
            row += len(new)
            last.append(row - 1)
        device = model.device
        logits = model(
            torch.tensor([[token for new in unread for token in new]], device=device),
            past_key_values=self._cache,
            use_cache=True,
            position_ids=torch.tensor([positions], device=device),
            attention_mask=mask[None, None].to(device),
            logits_to_keep=torch.tensor(last, device=device),
        ).logits
        return logits[0].float().cpu()

    def _position_at(self, index: int) -> int:
        """The position of a token of the tail. The answer begins at M, even if the last kept token is not at M - 1."""
        return self.context_length + index - 1 if index else self._position


class _Continuation:
    """One continuation: its tokens, the distributions that they were sampled from, and their alternatives."""

    def __init__(self, temperature: float, top_m: int, alternatives: int, random: torch.Generator) -> None:
        self._temperature, self._top_m, self._alternatives, self._random = temperature, top_m, alternatives, random
        self._tokens: list[int] = []
        self._q: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._others: list[tuple[torch.Tensor, torch.Tensor]] = []

    def next(self, logits: torch.Tensor) -> int:
        """Choose the next token from logits [vocabulary]: greedily, or from the top m at the temperature."""
        if self._alternatives:
            self._others.append(_top(logits, self._alternatives))
        if self._top_m:
            probs, ids = _top(logits.double() / self._temperature, self._top_m)
            # Sample from the float32 probabilities that are returned as q.
            probs = (probs / probs.sum()).float()
            token = int(ids[torch.multinomial(probs, 1, generator=self._random)])
            self._q.append((probs, ids))
        else:
            token = int(logits.argmax())
        self._tokens.append(token)
        return token

    def drafted(self) -> Drafted:
        q, others = self._q, self._others
        return Drafted(np.array(self._tokens, np.int32), _flat(q, 1), _flat(q, 0), _flat(others, 1), _flat(others, 0))


def _top(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids of the `count` most probable tokens, the most probable first."""
    probs, ids = logits.softmax(-1).topk(min(count, logits.numel()))
    return probs, ids


def _flat(rows: list[tuple[torch.Tensor, torch.Tensor]], part: int) -> Any:
    """Concatenate one part of all rows: probabilities (part 0) as float32, or ids (part 1) as int32."""
    kind = np.int32 if part else np.float32
    return torch.cat([row[part] for row in rows]).numpy().astype(kind) if rows else np.empty(0, kind)


class CacheSessionTable:
    """Sessions by id. If there are too many, the least recently used is dropped."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, CacheSession] = OrderedDict()

    def add(self, name: str, session: CacheSession) -> None:
        self._sessions[name] = session
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)

    def get(self, name: str) -> CacheSession:
        """The session. Raises SessionLostError if it is not here."""
        if name not in self._sessions:
            raise SessionLostError(f"session {name} is not on this speculator: it was evicted or never opened")
        self._sessions.move_to_end(name)
        return self._sessions[name]

    def remove(self, name: str) -> None:
        self._sessions.pop(name, None)

    def __len__(self) -> int:
        return len(self._sessions)
