"""One conversation that the target reads behind the requests of clients: what it is asked, and how far it is."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import ADAPTER, READ_ONLY, Envelope, GenerateOutput, GenerateRequest, KeptPrompt
from kv_transfer.options import AUTO, DecodeOptions
from kv_transfer.prefix_hash import block_hashes
from router.decision.cache_ledger import BLOCK_TOKENS
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

DECIDE_NOTHING_KEPT = {"enabled", "catch_up", "lossy"}
"""Request options with which `auto` keeps what it would keep without them."""


@dataclass(slots=True, eq=False)
class Reading:
    """ids: int32 [T], the prompt and its answer. hashes: of their blocks. key: the name of the call's API key.

    shape: as in Outcome. judged: the guard learns from the answer (`is_judged`). scored: first tokens of the answer
    that are still to be scored. done: tokens of ids that the target has read. resume_at: when running streams have had
    their share of its replica's time. losses: how often the target had lost its tokens. agreement: of the answer, once
    it is known. task: while it runs. asked: the latest request. held: it was cancelled because of the load. ended: why
    the task was cancelled.
    """

    pools: Pools
    prepared: Prepared
    ids: Int32Array
    hashes: Sequence[bytes]
    key: str
    shape: str
    judged: bool
    scored: int
    done: int
    resume_at: float = 0.0
    losses: int = 0
    agreement: float | None = None
    task: asyncio.Task[None] | None = None
    asked: asyncio.Task[GenerateOutput] | None = None
    held: bool = False
    ended: str = "stopped"
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def of(cls, pools: Pools, prepared: Prepared, outcome: Outcome, answer: AnswerRecord) -> Self:
        """After a complete answer. Of several answers none is read: the client goes on with one of them at most."""
        several = (answer.asked.sampling.get("n") or 1) > 1
        prompt, told = prepared.prompt.rendered.token_ids, answer.first_token_ids[: 0 if several else None]
        limit = min(pools.target.max_model_len, pools.target.max_position) - 1
        ids, forecast = np.concatenate([prompt, told])[:limit], prepared.forecast
        return cls(
            pools,
            prepared,
            ids,
            block_hashes(ids, BLOCK_TOKENS, forecast.salt, known=forecast.hashes),
            outcome.call.request.key,
            outcome.shape,
            is_judged(prepared, outcome),
            min(SCORED_TOKENS, max(0, int(ids.size - prompt.size))) if is_greedy(prepared) else 0,
            done=min(forecast.known_dense, int(prompt.size) - 1) // BLOCK_TOKENS * BLOCK_TOKENS,
        )

    def request(self, end: int, scored: int) -> GenerateRequest:
        """For the first `end` of ids, as the client's own: only the priority is another."""
        prompt, prepared = self.prepared.prompt, self.prepared
        return GenerateRequest(
            f"{prepared.wire_id}-catch-up-{next(self._numbers)}",
            KeptPrompt.dense(self.ids[:end]),
            dict(READ_ONLY),
            LOWEST_PRIORITY,
            prompt.cache_salt,
            {name: value for name, value in prompt.engine_args.items() if name == ADAPTER},
            DecodeOptions(method="none"),
            envelope=Envelope(affinity=prepared.affinity),
            scored=scored,
        )

    async def read(self, end: int, scored: int) -> GenerateOutput | None:
        """The target's output for `request`; None if `hold` has cancelled it."""
        self.asked = task = asyncio.create_task(_only_output(self.pools, self.request(end, scored)))
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


def is_judged(prepared: Prepared, outcome: Outcome) -> bool:
    """Whether the answer tells what `auto` does by the deployment's own options: the client gives none that decide what
    is kept, and the load has left out nothing of it."""
    request = outcome.call.request
    own = request.options.model_fields_set <= DECIDE_NOTHING_KEPT and request.keep_fields is None
    return own and request.options.enabled == AUTO and "shed" not in outcome.notes
