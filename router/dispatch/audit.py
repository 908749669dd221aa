"""The audit: a share of the live requests also runs dense, after the answer is done, to measure what selection costs.

The dense run is a request of its own to the target pool, in the background. No client waits for it and no answer
depends on it. Only complete greedy answers are compared: two samples of one distribution differ anyway. An audit reads
the whole prompt, about 1/keep_rate times what was read of the compressed one: at a keep rate of 0.2, a share of 0.02
costs 10 % more prefill. Its answer has at most MAX_TOKENS tokens.

Audits are the first work that a loaded router drops: none begins while it has more than `max_ongoing` requests at the
target, and those that run are cancelled when it gets more. The load counts too (`router.admission.load_shedding`).
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from actors.observability.meter import Meter
from kv_transfer.arrays import Int32Array
from kv_transfer.messages import ADAPTER, GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from kv_transfer.sampling import FINAL_ONLY
from router.pools.answer_record import AnswerRecord
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from router.pools.migration import migrate
from skim_common.errors import SkimError

logger = logging.getLogger(__name__)

MAX_TOKENS = 128
"""Tokens of the answers that are compared. More would cost decoding steps and change the overlap little."""

MAX_RUNNING = 2
"""Audits that one router has in progress; more are dropped."""

LOWEST_PRIORITY = 2**31 - 1
"""vLLM serves higher numbers later, if its scheduling policy is `priority`."""

AGREES = 0.5
"""An overlap of at least this counts as the same answer in the metric: a starting value, as the alert's limit."""

# These change the form of the output only, or are part of the length that an audit sets itself.
_NOT_COMPARED = ("logprobs", "prompt_logprobs", "stream_interval", "flat_logprobs")


def agreement(answer: Int32Array, other: Int32Array) -> float:
    """The normalised token overlap of two answers (token ids, int32 [A] and [B]), 0 to 1; 1 for equal answers.

    It is SQuAD's F1 (arXiv 1606.05250, section 6.1) over token ids: twice the number of shared tokens, with their
    multiplicity, divided by the number of tokens of both. Two empty answers agree.
    """
    if not answer.size and not other.size:
        return 1.0
    shared = (Counter(answer.tolist()) & Counter(other.tolist())).total()
    return 2 * shared / (answer.size + other.size)


class Audits:
    """The audits of one router. share: of the requests that are suitable. max_ongoing: see above.

    chance: a number in [0, 1) for each suitable request; below `share`, it is audited.
    """

    def __init__(
        self, meter: Meter, share: float, max_ongoing: int, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._meter, self._share, self._max_ongoing, self._chance = meter, share, max_ongoing, chance
        self._running = BackgroundTasks()
        self._ongoing = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """A client's request is at the target. Under load it ends the audits that run."""
        self._ongoing += 1
        if self._ongoing > self._max_ongoing:
            self.drop()
        try:
            yield
        finally:
            self._ongoing -= 1

    def drop(self) -> None:
        """End the audits that run."""
        self._running.cancel()

    def begin(self, pools: Pools, prompt: Int32Array, answer: AnswerRecord, *, loaded: bool = False) -> None:
        """Audit the answer to `prompt` [M], if it is suitable and chosen. loaded: no audit may begin."""
        request = answer.asked
        if not (self._share and _suitable(answer, request.sampling)) or self._chance() >= self._share:
            return
        if loaded or self._ongoing > self._max_ongoing or len(self._running) >= MAX_RUNNING:
            self._record("dropped")
            return
        dense = GenerateRequest(
            f"{request.request_id}-audit",
            KeptPrompt.dense(prompt),
            _compared(request.sampling),
            LOWEST_PRIORITY,
            request.cache_salt,
            {name: value for name, value in request.engine_args.items() if name == ADAPTER},
            DecodeOptions(method="none"),
        )
        self._running.start(self._run(pools, dense, answer.first_token_ids))

    async def _run(self, pools: Pools, dense: GenerateRequest, answer: Int32Array) -> None:
        record = AnswerRecord(dense)
        try:
            async with aclosing(migrate(record, pools.generate, enabled=False)) as outputs:
                async for _ in outputs:
                    pass
        except asyncio.CancelledError:
            self._record("dropped")
            raise
        except SkimError as error:
            logger.debug("%s: no dense answer: %s", dense.request_id, error)
            self._record("failed")
            return
        overlap = agreement(answer[:MAX_TOKENS], record.first_token_ids[:MAX_TOKENS])
        self._meter.record("skim_router_audit_agreement", overlap)
        self._record("agrees" if overlap >= AGREES else "differs")

    def _record(self, outcome: str) -> None:
        self._meter.record("skim_router_audits_total", 1, outcome=outcome)


def _suitable(answer: AnswerRecord, sampling: Mapping[str, Any]) -> bool:
    """Whether a dense answer can be compared: one complete greedy answer to a prompt of which something was dropped."""
    request = answer.asked
    greedy = sampling.get("temperature", 1.0) == 0 and (sampling.get("n") or 1) == 1
    return greedy and answer.finished and not request.prompt.is_dense


def _compared(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of the dense run: the client's, for at most MAX_TOKENS tokens."""
    fields = {name: value for name, value in sampling.items() if name not in _NOT_COMPARED}
    for name in ("max_tokens", "min_tokens"):
        if fields.get(name) is not None:
            fields[name] = min(fields[name], MAX_TOKENS)
    return {"max_tokens": MAX_TOKENS, **fields, "output_kind": FINAL_ONLY}
