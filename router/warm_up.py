"""Next-turn warm-up: idle replicas read the predictable start of a chat's next turn before the client sends it.

When an answer is complete, the next turn's prompt is known up to the user's next message: the conversation, the answer
as the chat template renders it, and the template's text before a user message. Reading it fills the prefix caches; no
answer depends on it. (Dynamo and llm-d call this "speculative prefill".) A replica that has anything else to do drops
it. The speculator reads the text as it is; the target reads what was kept of this turn, then what follows.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context
from typing import Any, Protocol

import numpy as np

from actors.observability.metrics import Meter
from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array, KeptPrompt, WarmUpRequest
from router.forecast import Forecaster
from router.pools import Pools
from router.protection import Offsets, char_ranges

logger = logging.getLogger(__name__)

MAX_RUNNING = 8
"""Warm-ups that one router has in progress; more are dropped."""

NEXT_MESSAGE = "skim-next-user-message"
"""Stands for the user's next message when the next turn is rendered."""


class NextTurn(Protocol):
    """The start of the next turn's prompt, int32 [T], from the text of this turn's answer. May raise any error."""

    async def __call__(self, answer: str) -> Int32Array: ...


class WarmUps:
    """The warm-ups of one router. forecaster: learns what they put into the caches."""

    def __init__(self, meter: Meter, forecaster: Forecaster) -> None:
        self._meter, self._forecaster = meter, forecaster
        self._running: set[asyncio.Task[None]] = set()

    def begin(
        self,
        pools: Pools,
        request: WarmUpRequest,
        prompt: Sequence[int],
        next_turn: NextTurn,
        answer: str,
        *,
        speculative: bool,
    ) -> None:
        """Warm up in the background. request: with what the target read of this turn's `prompt` [M].

        speculative: whether the speculator read the prompt too.
        The task has its own context: Serve cancels calls that belong to a finished request, and finds them by context.
        """
        pool_names = ("speculator", "target") if speculative else ("target",)
        if len(self._running) >= MAX_RUNNING:
            for pool in pool_names:
                self._record(pool, "busy")
            return

        async def run() -> None:
            try:
                following = await next_turn(answer)
            except Exception as error:  # templates and tokenizers raise many kinds
                logger.debug("request %s: the next turn cannot be rendered: %s", request.follows, error)
                return
            new = following.size - common_tokens(prompt, following)
            read = {"speculator": KeptPrompt.dense(following), "target": continued(request.prompt, prompt, following)}

            async def read_ahead(pool: str) -> None:
                if await self._read(pools, pool, request, read[pool]):
                    self._meter.record("skim_router_warm_up_tokens_total", new, pool=pool)
                    self._forecaster.warmed(pool, following, request.cache_salt, read[pool], new)

            await asyncio.gather(*(read_ahead(pool) for pool in pool_names))

        task = asyncio.create_task(run(), context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _read(self, pools: Pools, pool: str, request: WarmUpRequest, prompt: KeptPrompt) -> bool:
        """Whether the pool has read the prompt."""
        asked = WarmUpRequest(request.request_id, prompt, request.follows, request.cache_salt)
        try:
            done = await pools.warm_up(pool, asked)
        except SkimError as error:
            logger.debug("request %s: no warm-up of the %s: %s", request.follows, pool, error)
            self._record(pool, "failed")
            return False
        self._record(pool, "read" if done else "busy")
        return done

    def _record(self, pool: str, outcome: str) -> None:
        self._meter.record("skim_router_warm_ups_total", 1, pool=pool, outcome=outcome)


def common_tokens(prompt: Sequence[int], following: Int32Array) -> int:
    """The number of tokens with which both begin. prompt: [M]. following: int32 [T]."""
    size = min(len(prompt), following.size)
    differ = np.flatnonzero(np.asarray(prompt[:size], np.int32) != following[:size])
    return int(differ[0]) if differ.size else size


def continued(kept: KeptPrompt, prompt: Sequence[int], following: Int32Array) -> KeptPrompt:
    """The kept prompt of the next turn's start: the slots of `kept` whose text both turns share, then all new tokens.

    kept: what was kept of `prompt` [M]. following: int32 [T], T >= 1.
    """
    common = common_tokens(prompt, following)
    later = np.flatnonzero(kept.positions >= common)
    slots = int(later[0]) if later.size else kept.positions.size
    if slots == 0 and common == following.size:
        return KeptPrompt.dense(following)
    return KeptPrompt(
        np.concatenate([kept.token_ids[:slots], following[common:]]),
        np.concatenate([kept.positions[:slots], np.arange(common, following.size, dtype=np.int32)]),
        int(following.size),
    )


def start_of_next_turn(text: str, token_ids: Sequence[int], offsets: Offsets) -> Int32Array:
    """The tokens before NEXT_MESSAGE in a rendered prompt, int32 [T]. offsets: each token's character range in `text`.

    Raises ValueError if the template dropped the message, or if nothing is before it.
    """
    place = text.rindex(NEXT_MESSAGE)
    beyond = np.flatnonzero(char_ranges(offsets)[:, 1] > place)
    count = int(beyond[0]) if beyond.size else len(offsets)
    if not count:
        raise ValueError("the next message has nothing before it")
    return np.asarray(token_ids[:count], np.int32)


def next_conversation(conversation: Sequence[Any], answer: str) -> list[Any]:
    """This turn's messages, the answer, and a user message that stands for the next one."""
    return [*conversation, {"role": "assistant", "content": answer}, {"role": "user", "content": NEXT_MESSAGE}]
