"""An answer that is interrupted to add dropped chunks, from two engines in this process.

The target answers a block at a time. The speculator's session, which holds the whole prompt, drafts the same block. The
prompt is scored again by the queries of the answer's last tokens: at the first token that differs (trigger
`rejection`), or after each block (`interval`). If one of the best chunks was dropped, it is added before the question,
and the target answers on from kept segments, late chunks, question and the answer so far. The kept segments stay in the
target's prefix cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from cluster.in_process.async_pair import AsyncPair
from cluster.in_process.prompts import RenderedPrompt
from kv_transfer.messages import Float32Array, GenerateRequest, Int32Array, KeptPrompt
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import mask_of
from target_service.sampling import DELTA

Trigger = Literal["rejection", "interval"]

INTERVAL = 8
"""Tokens of a block."""
MOST = 6
"""Recalls per answer."""
BEST = 2
"""Chunks that are looked at: those of them that were dropped are added."""
ROWS = {"rejection": 2, "interval": INTERVAL}
"""Last tokens whose queries score the prompt."""


@dataclass(frozen=True, slots=True)
class Recall:
    """at: tokens of the answer before it. chunks: the added chunks. read: tokens that the target computed for it."""

    at: int
    chunks: tuple[int, ...]
    read: int


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One answer. kept: the prompt at its end. looks: how often the prompt was scored again. scored: tokens that the
    speculator computed for that. accepted, drafted: tokens up to the first different one of each block, and tokens of
    all blocks.
    """

    text: str
    kept: KeptPrompt
    recalls: tuple[Recall, ...] = ()
    looks: int = 0
    scored: int = 0
    accepted: int = 0
    drafted: int = 0


def missing_chunks(importance: Float32Array, kept: KeptPrompt, protected: Int32Array, size: int) -> tuple[int, ...]:
    """Those of the BEST droppable chunks of `size` tokens that are not kept as a whole, ascending.

    importance: float32 [M] or longer. protected: int32 [P, 2]. A chunk that touches a protected span cannot be dropped,
    and does not count: the attention to the prompt's first tokens is high without any meaning.
    """
    length = kept.context_length // size * size  # a shorter last chunk belongs to the question
    means = importance[:length].astype(np.float64).reshape(-1, size).mean(1)
    touched = np.any(mask_of(protected.tolist(), kept.context_length)[:length].reshape(-1, size), axis=1).tolist()
    best = [chunk for chunk in np.argsort(-means, kind="stable").tolist() if not touched[chunk]][:BEST]
    standing = np.bincount(kept.positions // size, minlength=means.size)
    return tuple(sorted(chunk for chunk in best if standing[chunk] < size))


def with_chunks(
    kept: KeptPrompt, token_ids: Int32Array, chunks: Sequence[int], before: int, size: int
) -> tuple[KeptPrompt, int]:
    """The kept prompt with the missing tokens of `chunks` before its first token at or after position `before`.

    token_ids: int32 [M], the whole prompt. Returns also the number of leading tokens that did not move.
    """
    stays = int(np.argmax(kept.positions >= before))
    wanted = np.concatenate([np.arange(c * size, min((c + 1) * size, before), dtype=np.int32) for c in chunks])
    late = wanted[~np.isin(wanted, kept.positions)]
    positions = np.concatenate([kept.positions[:stays], late, kept.positions[stays:]])
    return replace(kept, token_ids=token_ids[positions], positions=positions), stays


class Recaller:
    """Answers prompts with recalls. options: how the prompt is scored again; its keep rate is not used."""

    def __init__(self, pair: AsyncPair, options: SelectionOptions, max_tokens: int) -> None:
        self._pair, self._max_tokens = pair, max_tokens
        self._options = options.model_copy(update={"score_queries": "question"})

    async def answer(self, prompt: RenderedPrompt, kept: KeptPrompt, session: str, trigger: Trigger) -> Attempt:
        """The answer to `kept`. session: a session of the speculator over the whole prompt."""
        assert prompt.question is not None
        asked, size = prompt.question[0], self._options.chunk_size
        answered = np.empty(0, np.int32)
        recalls: list[Recall] = []
        looks = scored = accepted = drafted = 0
        while True:
            tokens, finished = await self._next_block(kept, answered)
            drafts = (await self._pair.speculator.draft(session, answered, tokens.size)).tokens
            agreed = _agreed(tokens, drafts)
            accepted, drafted = accepted + agreed, drafted + tokens.size
            at = agreed if trigger == "rejection" else tokens.size
            doubtful = at < tokens.size if trigger == "rejection" else not finished
            if doubtful and len(recalls) < MOST:
                so_far, looks = np.concatenate([answered, tokens[:at]]), looks + 1
                importance, computed = await self._look(prompt.token_ids, so_far, ROWS[trigger])
                scored += computed
                if chunks := missing_chunks(importance, kept, prompt.protected, size):
                    kept, stays = with_chunks(kept, prompt.token_ids, chunks, asked, size)
                    read = int(kept.token_ids.size) - stays + int(so_far.size)
                    recalls.append(Recall(int(so_far.size), chunks, read))
                    answered = so_far
                    continue
            end = min(at + 1, tokens.size)
            answered = np.concatenate([answered, tokens[:end]])
            if finished and end == tokens.size:
                text = self._pair.tokenizer.decode(answered, skip_special_tokens=True)
                return Attempt(text, kept, tuple(recalls), looks, scored, accepted, drafted)

    async def _look(self, token_ids: Int32Array, answered: Int32Array, rows: int) -> tuple[Float32Array, int]:
        """The importance of the prompt and the answer so far, float32 [M + A], and the tokens computed for it."""
        read = np.concatenate([token_ids, answered])
        scores = await self._pair.speculator.score(
            self._pair.name("look"), read, self._options, question=(read.size - rows, read.size)
        )
        return scores.importance.float().numpy(), int(read.size) - scores.cached_tokens

    async def _next_block(self, kept: KeptPrompt, answered: Int32Array) -> tuple[Int32Array, bool]:
        """The next tokens, int32 [<= INTERVAL], and whether the answer ends with them."""
        length = min(int(answered.size) + INTERVAL, self._max_tokens)
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": length, "output_kind": DELTA}
        prompt = kept.extended(answered) if answered.size else kept
        request = GenerateRequest(self._pair.name("block"), prompt, sampling, answered=int(answered.size))
        outputs = [output.completions[0] async for output in self._pair.target.generate(request)]
        finished = outputs[-1].finish_reason != "length" or length == self._max_tokens
        return np.concatenate([output.token_ids for output in outputs]).astype(np.int32), finished


def _agreed(tokens: Int32Array, drafts: Int32Array) -> int:
    """The number of leading tokens that were drafted."""
    size = min(tokens.size, drafts.size)
    different = tokens[:size] != drafts[:size]
    return int(different.argmax()) if different.any() else size
