"""A speculator process stalls, dies and restarts while the target runs: the tokens stay the same, drafting resumes.

This module needs its own engine: an engine that knows other drafters would move the sessions to them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kv_transfer.messages import SessionHandle
from kv_transfer.options import DecodeOptions
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import kept_prompt
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import MAX_DRAFTS, Case, decode, gained, plain_cases
from tests.reference.speculator_process import HOST, SpeculatorProcess

pytestmark = pytest.mark.nightly

MODEL = {"max_position": 2048}


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start(decode={"method": "remote", "max_draft_tokens": MAX_DRAFTS}, draft_channel={"deadline_s": 1.0})


async def test_a_speculator_process_that_stands_still_dies_and_comes_back(engine: VllmTarget, model: str) -> None:
    """Its sessions are restored from the kept tokens. Its model is the target's, so most drafts are accepted."""
    cases = await plain_cases(engine, [kept_prompt(300, 60, seed=220 + i) for i in range(2)], "process", tokens=600)
    options = DecodeOptions(max_draft_tokens=1, adaptive=False)
    before = await engine.decode_stats()

    async def answer(case: Case, port: int) -> list[int]:
        prompt = replace(case.prompt, session=SessionHandle(f"{HOST}:{port}", case.name))
        return await decode(engine, prompt, case.name, options, max_tokens=len(case.answer))

    async def rose_until(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not condition(rose := gained(before, await engine.decode_stats())):
            assert not running.done(), f"the answers ended first: {rose}"
            await asyncio.sleep(0.001)
        return rose

    with SpeculatorProcess(model) as first, SpeculatorProcess(model) as second:
        await first.listen()
        running = asyncio.gather(*(answer(case, first.port) for case in cases))
        drafting = await rose_until(lambda rose: rose["accepted"] > 20)

        first.stand_still()
        stalled = await rose_until(lambda rose: rose["fallbacks"]["timeout"] > drafting["fallbacks"]["timeout"])
        first.go_on()
        resumed = await rose_until(lambda rose: rose["resumed"] >= stalled["resumed"] + len(cases))

        first.kill()
        # Negative control: the breaker opened twice, so there was at least one trial, and drafting did not resume.
        opened = resumed["channel"]["breaker_opened"]
        dead = await rose_until(lambda rose: rose["channel"]["breaker_opened"] >= opened + 2)
        assert dead["resumed"] == resumed["resumed"]

        await second.listen(first.port)
        back = await rose_until(lambda rose: rose["resumed"] >= dead["resumed"] + len(cases))
        assert back["restored"] >= dead["restored"] + len(cases)
        assert await running == [case.answer for case in cases]
    rose = gained(before, await engine.decode_stats())
    assert rose["accepted"] > back["accepted"]
    assert rose["accepted"] > 0.95 * rose["drafts"]
