"""Ageing with vLLM: a turn on what is left of an old result is what the target answers to these tokens and positions.
If it shrank the prompt in place, it is what it answers to the KV of the whole text without what was dropped.

The demo target runs; the router selects by words, so no speculator does.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from demo_models.documents import make_document
from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from kv_transfer.spans import spans_of
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import RenderedPrompt
from skim_common.models.info import load_tokenizer
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.router.test_catch_up import BLOCK, DEADLINE_S, GREEDY, MODEL, dispatcher_of
from tests.engine.target_service.vllm_backend.cases import engine_options
from tests.reference.generation_oracle import GenerationOracle

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGE = {"turns": 3, "keep": 0.25}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(device: str) -> AsyncIterator[VllmTarget]:
    target = VllmTarget(MODEL, **engine_options(device, max_model_len=4096, max_num_batched_tokens=512))
    yield target
    target.close()


class Session:
    """A conversation with one result of a tool, in the demo model's words. salt: shares no cache with another.

    in_place: the router knows that the target can shrink prompts.
    """

    def __init__(self, engine: VllmTarget, salt: str, *, in_place: bool = True, **options: Any) -> None:
        self.dispatcher: Dispatcher = dispatcher_of(engine)
        if not in_place:
            self.dispatcher.pools.target = replace(engine.info, shrinks_by=0)
        self.salt, self.options = salt, {"min_prompt_tokens": 256, "selector": "lexical", "enabled": "auto", **options}
        self._tokenizer = load_tokenizer(MODEL)
        self.text, self.ids, self.offsets = "", list[int](), list[tuple[int, int]]()
        self.roles, self.contents = list[str](), list[Content]()

    def add(self, role: str, text: str, ids: list[int] | None = None) -> tuple[int, int]:
        """Add a message; returns its token span. ids: of an answer, one for each character of its text."""
        at, first = len(self.text), len(self.ids)
        if ids is None:
            found = self._tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
            ids, offsets = found["input_ids"], found["offset_mapping"]
        else:
            offsets = [(place, place + 1) for place in range(len(ids))]
        self.contents.append(Content(len(self.roles), role, text, spans=((at, at + len(text)),)))
        self.roles.append(role)
        self.text += text
        self.ids += ids
        self.offsets += [(at + start, at + end) for start, end in offsets]
        return first, len(self.ids)

    async def turn(self, name: str, **options: Any) -> SimpleNamespace:
        """The answer, the reason, what the target was sent, and what it had cached. The answer is added."""
        call = CallState(
            Request(PrefillOptions(**{**self.options, **options}), DecodeOptions(method="none"), later_requests=2)
        )
        chat = ChatContents([*self.roles], [*self.contents])
        rendered = RenderedPrompt(np.array(self.ids, np.int32), self.text, [*self.offsets], chat)
        prompt = Prompt(rendered, GREEDY, GREEDY["max_tokens"], cache_salt=self.salt)
        outputs = [output async for output in self.dispatcher.run(name, prompt, call)]
        answer = [token for output in outputs for token in output.completions[0].token_ids.tolist()]
        self.add("assistant", "x" * len(answer), answer)
        sent = next(one for one in self.dispatcher.pools.generates if one.request_id.startswith(f"{name}~"))
        return SimpleNamespace(
            answer=answer, reason=call.prompts[0].reason, prompt=sent.prompt, cached=outputs[0].cached_tokens
        )

    async def rest(self, count: int) -> list[str]:
        """The outcomes of the catch-ups, once so many have ended."""
        recorded = self.dispatcher.meter.recorded
        async with asyncio.timeout(DEADLINE_S):
            while len(recorded.get("skim_router_catch_ups_total", ())) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return [tags["outcome"] for _, tags in recorded["skim_router_catch_ups_total"]]


async def third_turn(engine: VllmTarget, salt: str, **options: Any) -> SimpleNamespace:
    """The third turn of a session, after idle time. span: of the result."""
    session = Session(engine, salt, **options)
    document, *others = (make_document(2048, seed).messages[-1]["content"] for seed in (13, 14, 15))
    session.add("user", "Question: What is the price of the golden kettle?\n")
    span = session.add("tool", document[:-200] + "\n")
    await session.turn("first")
    assert await session.rest(1) == ["done"]
    session.add("user", "\n" + document[-200:])
    second = await session.turn("second")
    if session.options.get("age"):
        assert await session.rest(2) == ["done", "done"]
    known = len(session.ids)
    session.add("user", "\n" + others[0][-200:])
    size = len(session.ids)
    third = await session.turn("third")
    return SimpleNamespace(**vars(third), span=span, known=known, size=size, session=session, before=second.reason)


async def direct(engine: VllmTarget, prompt: KeptPrompt, name: str) -> list[int]:
    """What the target answers, with nothing of the prompt in its cache."""
    request = GenerateRequest(name, prompt, GREEDY, cache_salt=name)
    return [token async for output in engine.generate(request) for token in output.completions[0].token_ids.tolist()]


def blocks(prompt: KeptPrompt) -> int:
    return -(-prompt.token_ids.size // BLOCK)


async def test_after_shrinking_in_place_a_turn_attends_to_the_kv_of_the_whole_text(engine: VllmTarget) -> None:
    third = await third_turn(engine, "in place", age=AGE)
    assert (third.before, third.reason) == ("cached", "aged")
    dropped = np.setdiff1d(np.arange(third.size), third.prompt.positions)
    spans = spans_of(np.isin(np.arange(third.size), dropped)).tolist()
    assert dropped.size > (third.span[1] - third.span[0]) / 2
    assert not np.any(np.array(spans) % BLOCK)
    assert third.cached >= third.known - dropped.size - BLOCK
    # In idle time, the target computed less than a block for each of the two reads after the second turn.
    computed = third.session.dispatcher.meter.recorded["skim_router_catch_up_tokens_total"]
    assert sum(tokens for tokens, _ in computed[-2:]) < 2 * BLOCK
    text = KeptPrompt.dense(third.session.ids[: third.size])
    rows = GenerationOracle(MODEL).shrunk_logprobs(text, [(third.known // BLOCK * BLOCK, spans)], third.answer)
    assert rows.argmax(-1).tolist() == third.answer


async def test_a_turn_on_an_aged_result_is_the_targets_own_and_cached(engine: VllmTarget) -> None:
    third = await third_turn(engine, "aged", in_place=False, age=AGE)
    assert (third.before, third.reason) == ("cached", "aged")
    start, end = third.span
    kept = third.prompt.positions
    dropped = np.setdiff1d(np.arange(third.size), kept)
    assert start <= dropped.min()
    assert dropped.max() < end
    assert (end - start) / 2 < dropped.size <= (1 - AGE["keep"]) * (end - start)
    # The oracle: the same ids at the same positions, read at once.
    ids = np.array(third.session.ids[: third.size], np.int32)
    assert third.answer == await direct(engine, KeptPrompt(ids[kept], kept, third.size), "the same tokens")
    # All that stood before the new question was read in idle time.
    assert third.cached >= third.known - dropped.size - BLOCK
    assert not third.prompt.kv_tag
    dense = await third_turn(engine, "dense")
    assert dense.reason == "cached"
    assert dense.prompt.is_dense
    assert blocks(dense.prompt) - blocks(third.prompt) >= dropped.size // BLOCK


async def test_the_cache_is_that_of_these_positions_and_the_whole_prompt_stays_exact(engine: VllmTarget) -> None:
    """The negative controls."""
    third = await third_turn(engine, "control", age=AGE)
    renumbered = GenerateRequest("renumbered", KeptPrompt.dense(third.prompt.token_ids), GREEDY, cache_salt="control")
    outputs = [output async for output in engine.generate(renumbered)]
    first = int(np.flatnonzero(np.diff(third.prompt.positions) != 1)[0]) + 1
    assert outputs[0].cached_tokens <= first < third.cached
    third.session.add("user", "\nQuestion: What is the weight of the quiet drum?\n")
    whole = await third.session.turn("fourth", lossy="refuse")
    assert whole.prompt.is_dense
    assert whole.answer == await direct(engine, whole.prompt, "the whole prompt")
