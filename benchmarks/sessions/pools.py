"""Both pools in virtual time, behind the router's own dispatcher.

The decision, the admission, the catch-up, the windows, the records and what a later turn keeps are the product's own
code. Simulated are the engines' times and caches, and the scores, which are random.
"""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np

from benchmarks.sessions.engine import SimulatedEngine
from kv_transfer.arrays import Int32Array
from kv_transfer.messages import (
    Completion,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
)
from router.pools.interface import Admitted, unwatched
from skim_common.models.info import ModelInfo
from speculator_service.engine import ScoreRequest, Scores
from speculator_service.service import SpeculatorService

VOCABULARY = 128_000


def _info(name: str, engine: SimulatedEngine, *, head_profile: bool) -> ModelInfo:
    positions = engine.planned.model.positions
    return ModelInfo(
        name,
        "simulated",
        VOCABULARY,
        "tokenizer",
        positions,
        positions,
        "simulated",
        engine.planned.model.read,
        engine.tokens,
        head_profile,
    )


class SimulatedSpeculator:
    """What `SpeculatorService` needs of an engine that drafts nothing."""

    supports_drafts = False

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine, self.info = engine, _info("speculator", engine, head_profile=True)
        self._random = np.random.default_rng(0)

    async def score(self, request: ScoreRequest) -> Scores:
        prompt, salt = KeptPrompt.dense(request.token_ids), request.cache_salt
        row = self.engine.submit(prompt, 1, salt)
        try:
            await row.first.wait()
        finally:
            self.engine.end(row, prompt, salt)
        queue = 1e3 * (row.began - row.arrived)
        importance = self._random.random(row.size, np.float32)
        return Scores(importance, [], {"queue": queue}, row.cached)


class SimulatedPools:
    """`router.pools.interface.Pools` of one replica each. answers: the tokens that a request is answered with, by its
    name."""

    untrusted = False

    def __init__(self, target: SimulatedEngine, speculator: SimulatedEngine) -> None:
        self.target_engine, self._speculator = target, SimulatedSpeculator(speculator)
        self.target = _info("target", target, head_profile=False)
        self.speculator: ModelInfo | None = self._speculator.info
        self._service = SpeculatorService(self._speculator)  # type: ignore[arg-type]
        self.answers: dict[str, Int32Array] = {}

    def replicas(self, pool: str) -> float:
        return 1.0

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        admitted()
        await asyncio.sleep(self._speculator.engine.planned.machine.skim_s)
        return await self._service.select(request)

    async def end_session(self, session: SessionHandle) -> None: ...

    async def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        admitted()
        answer = self.answers.get(request.request_id.partition("~")[0], np.zeros(1, np.int32))
        if "-catch-up-" in request.request_id:
            answer = answer[:1]
        async for output in generated(self.target_engine, request.prompt, answer):
            yield output


async def generated(
    engine: SimulatedEngine, prompt: KeptPrompt, answer: Int32Array
) -> AsyncGenerator[GenerateOutput, None]:
    """The first token of an answer, and the others together."""
    row = engine.submit(prompt, int(answer.size))
    try:
        await row.first.wait()
        now = asyncio.get_running_loop().time()
        timings = {"queue": 1e3 * (row.began - row.arrived), "prefill": 1e3 * (now - row.began)}
        yield GenerateOutput([_part(answer[:1], answer.size == 1)], answer.size == 1, row.cached, timings=timings)
        if answer.size > 1:
            await row.ended.wait()
            yield GenerateOutput([_part(answer[1:], True)], True)
    finally:
        engine.end(row, prompt.extended(answer))


def _part(tokens: Int32Array, last: bool) -> Completion:
    return Completion(0, "", tokens, finish_reason="length" if last else None)
