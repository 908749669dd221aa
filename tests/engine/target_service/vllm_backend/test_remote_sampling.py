"""Sampling with verified drafts is exact: continuations are distributed as the target's own, on a tiny vocabulary."""

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from target_service.drafting import session
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import Case, gained, with_session
from tests.reference.drafters import FakeSpeculator, drawing
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import build_model
from tests.reference.sampling_oracle import chi_square_p, continuations

VOCABULARY = 12
TOP_M = 6
PROMPT = KeptPrompt(np.array([3, 7, 9, 10, 4, 8], np.int32), np.array([0, 2, 3, 9, 14, 15], np.int32), 20)
REQUESTS = 3000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_model(tmp_path_factory.mktemp("tiny"), "llama", vocab_size=VOCABULARY, layers=1, max_position=64)


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start(decode={"method": "remote", "max_draft_tokens": 3}, draft_channel={"deadline_s": 1.0})


@pytest.fixture(autouse=True)
def a_part_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Q_TOP", TOP_M)


@pytest.fixture(scope="module")
def table(model: str) -> np.ndarray:
    return drafters_table(GenerationOracle(model))


def drafters_table(oracle: GenerationOracle) -> np.ndarray:
    """The mean of the target's distribution after each token and another distribution."""
    own = np.stack([oracle.logprobs(PROMPT, [a, 0])[1].exp().double().numpy() for a in range(VOCABULARY)])
    other = np.random.default_rng(3).dirichlet(np.ones(VOCABULARY), VOCABULARY)
    return (own + other) / 2


async def sample(
    engine: VllmTarget, speculator: FakeSpeculator, requests: int = REQUESTS, **chosen: Any
) -> tuple[Counter[tuple[int, int, int]], float]:
    """Continuations of three tokens, and the accepted share of the drafts."""
    counts: Counter[tuple[int, int, int]] = Counter()
    turns = asyncio.Semaphore(64)
    options = DecodeOptions(max_draft_tokens=3, adaptive=False)
    # Five tokens, so that drafts are possible for all of the first three.
    sampling = {**chosen, "max_tokens": 5, "ignore_eos": True, "detokenize": False}

    async def run(seed: int) -> None:
        async with turns:
            prompt = with_session(Case(f"s{seed}", PROMPT, []), speculator)
            request = GenerateRequest(f"s{seed}", prompt, {**sampling, "seed": seed}, decode=options)
            first, second, third, *_ = joined([o async for o in engine.generate(request)])[0]
            counts[first, second, third] += 1

    before = await engine.decode_stats()
    await asyncio.gather(*(run(seed) for seed in range(requests)))
    rose = gained(before, await engine.decode_stats())
    assert rose["drafts"] > requests
    return counts, rose["accepted"] / rose["drafts"]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 0.8, "top_p": 1.0, "min_p": 0.15, "logit_bias": {3: 0.7, 8: -1.5}},
    ],
)
async def test_continuations_are_distributed_as_the_targets_own(
    engine: VllmTarget, model: str, table: np.ndarray, sampling: dict[str, Any]
) -> None:
    async with FakeSpeculator(drawing(table)) as speculator:
        counts, accepted = await sample(engine, speculator, **sampling)
    expected = continuations(GenerationOracle(model), PROMPT, VOCABULARY, **sampling)
    assert {row.top_m for r in speculator.requests for row in r.rows} == {TOP_M}
    assert 0.2 < accepted < 0.9
    assert torch.isclose(expected.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert chi_square_p(counts, expected) > 0.01


async def test_the_comparison_sees_a_wrong_q(engine: VllmTarget, model: str, table: np.ndarray) -> None:
    """Negative control: a drafter that reports a q that it did not sample from biases the answer."""
    async with FakeSpeculator(drawing(table, told=np.full_like(table, 1 / VOCABULARY))) as speculator:
        counts, _ = await sample(engine, speculator, temperature=1.0, top_p=1.0)
    expected = continuations(GenerationOracle(model), PROMPT, VOCABULARY, temperature=1.0, top_p=1.0)
    assert chi_square_p(counts, expected) < 1e-4
