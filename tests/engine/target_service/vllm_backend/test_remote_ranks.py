"""Remote drafts on two tensor-parallel ranks: both verify the same drafts with the same q and stay in step.

The last tests use the complete path: target, channel, draft service, and a drafting model (here the target's own).
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np
import pytest
import torch

from kv_transfer.draft_channel import DraftServer
from kv_transfer.drafts import Drafted, DraftRow
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from speculator_service.drafting import DraftService
from target_service.drafting.session import Q_TOP
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    TOLERANCE,
    VOCABULARY,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import (
    MAX_DRAFTS,
    PLAIN,
    Case,
    decode,
    gained,
    plain_cases,
    with_session,
    wrong_answers,
)
from tests.reference.drafters import FakeSpeculator, drawing, knowing
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.model_drafter import ModelDrafter

pytestmark = pytest.mark.nightly

OPTIONS = DecodeOptions(max_draft_tokens=4, adaptive=False)


FAMILY = "qwen2"
MODEL = {"max_position": 2048}


@pytest.fixture(scope="module")
def engine(start: Start, device: str, every_core: None) -> VllmTarget:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two tensor-parallel ranks need two GPUs")
    return start(
        tensor_parallel=2,
        decode={"method": "remote", "max_draft_tokens": MAX_DRAFTS},
        # A long deadline for a busy machine, because this drafter is as slow as its target.
        draft_channel={"deadline_s": 5.0},
    )


async def test_greedy_and_sampled_requests_together(engine: VllmTarget, model: str) -> None:
    """Greedy answers are the plain ones; sampled ones have the probabilities of the oracle, drafts with q or not."""
    cases = await plain_cases(engine, [kept_prompt(300 + i, 60 + i, seed=i) for i in range(50)], "greedy")
    sampled = [Case(f"sampled-{i}", kept_prompt(200 + i, 40 + i, seed=50 + i), []) for i in range(6)]
    table = np.random.default_rng(0).dirichlet(np.full(VOCABULARY, 0.05), VOCABULARY)
    greedy, drawn = knowing({c.name: c.answer for c in cases}, 0.25, VOCABULARY), drawing(table)

    def draft(row: DraftRow, answer: list[int]) -> Drafted:
        return drawn(row, answer) if row.top_m else greedy(row, answer)

    before = await engine.decode_stats()
    async with FakeSpeculator(draft) as speculator:
        wrong, *answers = await asyncio.gather(
            wrong_answers(engine, cases, speculator, look_ahead=6), *(sample(engine, c, speculator) for c in sampled)
        )
    rose = gained(before, await engine.decode_stats())
    assert wrong == []
    assert rose["accepted"] / rose["rounds"] > 0.5
    assert {row.top_m for r in speculator.requests for row in r.rows} == {0, Q_TOP}
    oracle = GenerationOracle(model)
    for case, (tokens, logprobs) in zip(sampled, answers, strict=True):
        assert len(tokens) == 64
        assert oracle.largest_difference(case.prompt, tokens, logprobs) <= TOLERANCE


async def sample(engine: VllmTarget, case: Case, speculator: FakeSpeculator) -> tuple[list[int], list]:
    """64 tokens at temperature 1, with the log probabilities of the sampled and the two most probable tokens."""
    sampling = {"temperature": 1.0, "max_tokens": 64, "ignore_eos": True, "logprobs": 2}
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
    request = GenerateRequest(case.name, with_session(case, speculator), sampling, decode=options)
    tokens, logprobs, _ = joined([o async for o in engine.generate(request)])
    return tokens, logprobs


@pytest.fixture(scope="module")
async def address(model: str, engine: VllmTarget) -> AsyncGenerator[str, None]:
    """A replica that reads the kept tokens of each session at their places."""
    service = DraftService(ModelDrafter(model))
    server = DraftServer(service.handle, "127.0.0.1")
    address = f"127.0.0.1:{await server.start()}"
    for prompt in prompts(address):
        service.begin(prompt, "kept", None)
    service.begin(replace(prompts(address)[0], session=SessionHandle(address, "sampled")), "kept", None)
    yield address
    await server.stop()
    await service.close()


def prompts(address: str) -> list[KeptPrompt]:
    kept = [kept_prompt(300 + 7 * i, 50 + i, seed=i) for i in range(4)]
    return [replace(p, session=SessionHandle(address, f"session-{i}")) for i, p in enumerate(kept)]


async def test_a_drafter_that_reads_the_kept_tokens_at_their_places_is_always_right(
    engine: VllmTarget, address: str
) -> None:
    # Without their sessions, which end with the answer.
    alone = [replace(prompt, session=None) for prompt in prompts(address)]
    plain = await asyncio.gather(*(decode(engine, p, f"plain-{i}", PLAIN) for i, p in enumerate(alone)))
    before = await engine.decode_stats()
    drafted = await asyncio.gather(
        *(decode(engine, p, f"drafted-{i}", OPTIONS) for i, p in enumerate(prompts(address)))
    )
    rose = gained(before, await engine.decode_stats())
    assert drafted == plain
    assert rose["accepted"] > 0.95 * rose["drafts"] > 50
    assert rose["accepted"] / rose["rounds"] > 3


async def test_sampled_drafts_come_with_their_q(engine: VllmTarget, model: str, address: str) -> None:
    """The drafter is the target: q equals p except below the top m, and nearly all drafts are accepted."""
    before = await engine.decode_stats()
    prompt = replace(prompts(address)[0], session=SessionHandle(address, "sampled"))
    sampling = {"temperature": 0.3, "max_tokens": 100, "ignore_eos": True, "logprobs": 1}
    request = GenerateRequest("sampled", prompt, sampling, decode=OPTIONS)
    tokens, logprobs, _ = joined([o async for o in engine.generate(request)])
    rose = gained(before, await engine.decode_stats())
    assert rose["accepted"] > 0.8 * rose["drafts"] > 40
    assert rose["fallbacks"]["broken"] == 0
    assert GenerationOracle(model).largest_difference(prompt, tokens, logprobs) <= TOLERANCE
