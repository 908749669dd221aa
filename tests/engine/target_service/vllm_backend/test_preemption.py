"""Preempted requests are prefilled again, with the answer so far at the positions after the original prompt."""

import asyncio

import pytest
from prometheus_client import REGISTRY

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

BLOCKS = 24
"""Of 32 tokens; the requests below begin with 20 and grow to 28."""


FAMILY = "qwen3"


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start(num_gpu_blocks_override=BLOCKS, max_model_len=700)


def test_the_engine_tells_what_its_prefix_cache_holds(engine: VllmTarget) -> None:
    assert engine.info.cache_tokens == pytest.approx(32 * BLOCKS, rel=0.05)


def preemptions() -> float:
    return sum(s.value for m in REGISTRY.collect() for s in m.samples if s.name == "vllm:num_preemptions_total")


async def test_preempted_requests_are_the_oracles(engine: VllmTarget, model: str) -> None:
    oracle = GenerationOracle(model)
    prompts = [
        kept_prompt(3000, 155, seed=1),
        shuffled(kept_prompt(2000, 155, seed=2)),
        dense_prompt(155, seed=3),
        shuffled(dense_prompt(155, seed=4)),
    ]
    before = preemptions()
    await asyncio.gather(*(assert_right(engine, oracle, p, f"squeezed-{i}") for i, p in enumerate(prompts)))
    assert preemptions() > before
