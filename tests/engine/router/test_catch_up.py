"""Catch-up with vLLM: from its second turn on, a conversation is what plain vLLM answers to the same history.

The demo target runs; the router selects by words, so no speculator does.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from benchmarks.mock_engines.speculator import MockSpeculator
from demo_models.documents import make_document
from kv_transfer.messages import GenerateRequest, KeptPrompt, Selection, SelectRequest
from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import unwatched
from router.prompt.rendered import RenderedPrompt
from skim_common.models.info import load_tokenizer
from speculator_service.service import SpeculatorService
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import engine_options
from tests.unit.actors.local_meter import LocalMeter

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = str(Path(__file__).parents[3] / "demo_models" / "target")
GREEDY = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
BLOCK = 32
DEADLINE_S = 300.0


class OnePool:
    """The target of this process, and a selection by a mock."""

    speculator = None
    untrusted = False

    def __init__(self, engine: VllmTarget) -> None:
        self.engine, self.target = engine, engine.info
        self.select_service = SpeculatorService(MockSpeculator(MODEL))
        self.generates: list[GenerateRequest] = []

    def replicas(self, pool: str) -> float:
        return 1.0

    async def select(self, request: SelectRequest, *_: Any) -> Selection:
        return await self.select_service.select(replace(request, decode=None))

    def generate(self, request: GenerateRequest, admitted: Any = unwatched) -> Any:
        self.generates.append(request)
        return self.engine.generate(request)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(device: str) -> AsyncIterator[VllmTarget]:
    target = VllmTarget(MODEL, **engine_options(device, max_model_len=4096, max_num_batched_tokens=512))
    yield target
    target.close()


def texts() -> tuple[list[int], list[list[int]]]:
    """The tokens of a document with a question, and of two more questions."""
    tokenizer = load_tokenizer(MODEL)
    document, *others = (make_document(2048, seed) for seed in (3, 4, 5))
    return (
        tokenizer.encode(document.messages[-1]["content"]),
        [tokenizer.encode(other.messages[-1]["content"][-200:]) for other in others],
    )


async def turn(dispatcher: Dispatcher, ids: list[int], name: str, **options: Any) -> SimpleNamespace:
    """The tokens of the answer, the mode, and what the target had cached."""
    asked = {"min_prompt_tokens": 256, "keep_rate": 0.1, **options}
    call = CallState(Request(PrefillOptions(**asked), DecodeOptions(method="none"), later_requests=2))
    prompt = Prompt(RenderedPrompt(np.array(ids, np.int32)), GREEDY, GREEDY["max_tokens"], cache_salt="session")
    outputs = [output async for output in dispatcher.run(name, prompt, call)]
    return SimpleNamespace(
        answer=[token for output in outputs for token in output.completions[0].token_ids.tolist()],
        mode=call.prompts[0].mode,
        caught_up=call.prompts[0].caught_up,
        cached=outputs[0].cached_tokens,
    )


async def plain(engine: VllmTarget, ids: list[int], name: str) -> list[int]:
    """What vLLM answers, with nothing of the conversation in its cache."""
    request = GenerateRequest(name, KeptPrompt.dense(ids), GREEDY, cache_salt=name)
    return [token async for output in engine.generate(request) for token in output.completions[0].token_ids.tolist()]


async def caught_up(dispatcher: Dispatcher) -> list[str]:
    """The outcomes of the catch-ups, once one has ended."""
    recorded = dispatcher.meter.recorded
    async with asyncio.timeout(DEADLINE_S):
        while "skim_router_catch_ups_total" not in recorded:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [tags["outcome"] for _, tags in recorded["skim_router_catch_ups_total"]]


def dispatcher_of(engine: VllmTarget) -> Dispatcher:
    return Dispatcher(OnePool(engine), PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())


async def test_a_conversation_is_plain_vllms_from_its_second_turn_on(engine: VllmTarget) -> None:
    dispatcher = dispatcher_of(engine)
    history, questions = texts()
    first = await turn(dispatcher, history, "first")
    assert first.mode == "speculative"
    assert await caught_up(dispatcher) == ["done"]
    [(agreement, _)] = dispatcher.meter.recorded["skim_router_audit_agreement"]
    assert agreement == await chosen_share(engine, history, first.answer)
    answer = first.answer
    for number, question in enumerate(questions):
        known = len(history) + len(answer)
        history = [*history, *answer, *question]
        later = await turn(dispatcher, history, f"later {number}")
        assert later.mode == "dense"
        assert later.cached >= known - BLOCK
        assert later.answer == await plain(engine, history, f"plain {number}")
        answer = later.answer


async def test_without_it_the_second_turn_has_little_of_the_history_cached(engine: VllmTarget) -> None:
    """The negative control."""
    dispatcher = dispatcher_of(engine)
    history, questions = texts()
    history = history[7:]  # nothing of it is known
    first = await turn(dispatcher, history, "first", catch_up="off")
    history = [*history, *first.answer, *questions[0]]
    second = await turn(dispatcher, history, "second", catch_up="off", enabled=False)
    assert second.cached < len(history) / 2


async def chosen_share(engine: VllmTarget, ids: list[int], answer: list[int]) -> float:
    """The share of an answer's tokens that plain vLLM chooses after the whole prompt and those before."""
    chosen = 0
    for place, token in enumerate(answer):
        request = GenerateRequest(
            f"chosen {place}",
            KeptPrompt.dense([*ids, *answer[:place]]),
            {**GREEDY, "max_tokens": 1},
            cache_salt="chosen",
        )
        [output] = [output async for output in engine.generate(request)]
        chosen += output.completions[0].token_ids.tolist() == [token]
    return chosen / len(answer)
