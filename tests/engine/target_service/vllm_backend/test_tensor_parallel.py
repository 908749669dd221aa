"""Every rank of a tensor-parallel group restores positions."""

import asyncio

import pytest
import torch

from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    assert_right,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.segments import shuffled

pytestmark = pytest.mark.nightly

FAMILY = "qwen2"


@pytest.fixture(scope="module")
def engine(start: Start, device: str, every_core: None) -> VllmTarget:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two tensor-parallel ranks need two GPUs")
    return start(tensor_parallel=2)


async def test_two_ranks_are_the_oracles(engine: VllmTarget, model: str) -> None:
    oracle = GenerationOracle(model)
    prompts = [kept_prompt(900, 300, seed=1), dense_prompt(200, seed=2), kept_prompt(90, 20, seed=3)]
    prompts += [shuffled(kept_prompt(900, 300, seed=4)), shuffled(dense_prompt(100, seed=5))]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"ranks-{i}") for i, p in enumerate(prompts)))
