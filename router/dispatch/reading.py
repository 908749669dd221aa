"""One conversation that the target reads behind the requests of clients: what it is asked, and how far it is."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Self, TypeVar

import numpy as np

from kv_transfer.arrays import Int32Array, no_pairs
from kv_transfer.messages import ADAPTER, Envelope, GenerateOutput, GenerateRequest, KeptPrompt, Shrink
from kv_transfer.options import DecodeOptions
from kv_transfer.prefix_hash import block_hashes, prefix_hash
from kv_transfer.sampling import READ_ONLY
from kv_transfer.spans import mask_of, spans_of
from router.decision.aged_forms import AgedForm
from router.decision.cache_ledger import BLOCK_TOKENS
from router.decision.catch_up import AUDIT
from router.decision.forecaster import Forecaster
from router.dispatch.request import Prepared
from router.dispatch.state import Outcome
from router.pools.answer_record import AnswerRecord
from router.pools.interface import Pools

SCORED_TOKENS = 128
"""Tokens of an answer that are compared. Log probabilities of more would cost memory and say little more."""
LOWEST_PRIORITY = 2**31 - 1
"""vLLM serves higher numbers later, if its scheduling policy is `priority`."""

_CHANGES_TOKENS = (
    *("presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"),
    *("structured_outputs", "thinking_token_budget", "logits_processors"),
)
"""Fields of vllm.SamplingParams with which a greedy answer is not the model's likeliest tokens."""


Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class Reading:
    """whole: int32 [T], the prompt and its answer. ids, positions: int32 [K], what the target reads of it. hashes: of
    the blocks of ids. key: the name of the call's API key.

    shape, ages: as in Outcome. scored: first tokens of the answer that are still to be scored. done: tokens of ids that
    the target has read. form: by which it reads. drops: the form that the prompt gets in place, once it is read.
    losses: how often the target had lost them. agreement: of the answer, once it is known. task: while it runs. asked:
    the latest request. held: it was cancelled because of the load. ended: why the task was cancelled.
    """

    pools: Pools
    prepared: Prepared
    whole: Int32Array
    ids: Int32Array
    positions: Int32Array
    hashes: Sequence[bytes]
    key: str
    shape: str
    scored: int
    done: int
    ages: Int32Array = field(default_factory=no_pairs)
    form: AgedForm | None = None
    drops: AgedForm | None = None
    losses: int = 0
    agreement: float | None = None
    task: asyncio.Task[None] | None = None
    asked: asyncio.Task[Any] | None = None
    held: bool = False
    ended: str = "stopped"
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def of(
        cls, pools: Pools, prepared: Prepared, outcome: Outcome, answer: AnswerRecord, forecaster: Forecaster
    ) -> Self:
        """After a complete answer. Of several answers none is read: the client goes on with one of them at most.

        A measurement reads the whole text, whatever is old."""
        several = (answer.asked.sampling.get("n") or 1) > 1
        prompt, told = prepared.prompt.rendered.token_ids, answer.first_token_ids[: 0 if several else None]
        limit = min(pools.target.max_model_len, pools.target.max_position) - 1
        ids, forecast = np.concatenate([prompt, told])[:limit], prepared.forecast
        reading = cls(
            pools,
            prepared,
            ids,
            ids,
            np.arange(ids.size, dtype=np.int32),
            block_hashes(ids, BLOCK_TOKENS, forecast.salt, known=forecast.hashes),
            outcome.call.request.key,
            outcome.shape,
            min(SCORED_TOKENS, max(0, int(ids.size - prompt.size))) if is_greedy(prepared) else 0,
            done=min(forecast.known_dense, int(prompt.size) - 1) // BLOCK_TOKENS * BLOCK_TOKENS,
        )
        if outcome.catch_up is not None and outcome.catch_up.reason != AUDIT:
            if outcome.form is not None:
                reading.shorten(outcome.form, forecaster)
            if outcome.ages.size:
                reading.ages, reading.scored = outcome.ages, 0
        return reading

    def shorten(self, form: AgedForm, forecaster: Forecaster) -> None:
        """Read what this form leaves of the prompt and the answer. Nothing is scored: it is not the whole text."""
        self.form, self.scored, self.positions = form, 0, form.kept(int(self.whole.size))
        self.ids = self.whole[self.positions]
        self.hashes = block_hashes(self.ids, BLOCK_TOKENS, self.prepared.forecast.salt)
        self._find(forecaster)

    def has_most_of(self, form: AgedForm) -> bool:
        """Whether less is to be read to drop in place than of what the form leaves. To drop, all is read first."""
        drops = np.flatnonzero(mask_of(form.dropped, self.whole.size)[self.positions])
        return not drops.size or self.done - drops[0] >= drops.size

    def drop_in_place(self, form: AgedForm, forecaster: Forecaster) -> None:
        """Read on as before, and then drop what this form drops besides. Its tag names all that its KV comes from."""
        history = np.concatenate([self.ids, self.positions, form.dropped.ravel()])
        self.drops = replace(form, kv_tag=prefix_hash(history, self._tag.hex()))
        if self._shrink() is None:
            self.drops = replace(form, kv_tag=self._tag)
        self._find(forecaster)

    def dropped(self, forecaster: Forecaster) -> None:
        """The target has read and dropped. What is left is read on, less than a block: that also finds out if it has
        lost it."""
        assert self.drops is not None
        form, self.drops = self.drops, None
        self.shorten(form, forecaster)
        block = self.pools.target.shrinks_by
        end = int(self.ids.size) // block * block
        forecaster.shrunk(self.ids[:end], self.hashes[: end // BLOCK_TOKENS])
        self._find(forecaster)

    def _find(self, forecaster: Forecaster) -> None:
        """Begin behind what the target has of it."""
        known = forecaster.caches.dense.find(self.ids, self.hashes).tokens
        self.done = min(known, int(self.ids.size) - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    @property
    def _tag(self) -> bytes:
        return self.form.kv_tag if self.form else b""

    def _shrink(self) -> Shrink | None:
        if self.drops is None:
            return None
        dropped = spans_of(mask_of(self.drops.dropped, self.whole.size)[self.positions])
        return Shrink(dropped, self.drops.kv_tag) if dropped.size else None

    def request(self, end: int, scored: int) -> GenerateRequest:
        """For the first `end` of ids, as the client's own: only the priority is another."""
        prompt, prepared = self.prepared.prompt, self.prepared
        return GenerateRequest(
            f"{prepared.wire_id}-catch-up-{next(self._numbers)}",
            KeptPrompt(self.ids[:end], self.positions[:end], int(self.positions[end - 1]) + 1, kv_tag=self._tag),
            dict(READ_ONLY),
            LOWEST_PRIORITY,
            prompt.cache_salt,
            {name: value for name, value in prompt.engine_args.items() if name == ADAPTER},
            DecodeOptions(method="none"),
            envelope=Envelope(affinity=prepared.affinity),
            scored=scored,
            shrink=self._shrink() if end == self.ids.size else None,
        )

    async def read(self, end: int, scored: int) -> GenerateOutput | None:
        """The target's output for `request`; None as in `ask`."""
        return await self.ask(_only_output(self.pools, self.request(end, scored)))

    async def ask(self, asked: Coroutine[Any, Any, Found]) -> Found | None:
        """What a pool is asked for; None if `hold` has cancelled it."""
        self.asked = task = asyncio.create_task(asked)
        try:
            return await task
        except asyncio.CancelledError:
            held, self.held = self.held, False
            if held and self.task is not None and not self.task.cancelling():
                return None
            raise

    def hold(self) -> None:
        """Cancel what runs."""
        if self.asked is not None and not self.asked.done():
            self.held = True
            self.asked.cancel()


async def _only_output(pools: Pools, request: GenerateRequest) -> GenerateOutput:
    """The output of a request for one token."""
    async with aclosing(pools.generate(request)) as outputs:
        found = [output async for output in outputs]
    return found[0]


def is_greedy(prepared: Prepared) -> bool:
    """Whether the answer has the likeliest tokens after the kept prompt, so that those after the whole one compare."""
    sampling = prepared.prompt.sampling
    plain = (sampling.get("repetition_penalty") or 1.0) == 1.0 and not any(map(sampling.get, _CHANGES_TOKENS))
    return plain and sampling.get("temperature", 1.0) == 0 and (sampling.get("n") or 1) == 1
