"""Every stage of a pipeline restores positions, and drafting that does not work with stages is refused."""

import asyncio

import pytest
import torch

from skim_common.errors import SkimError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.broken_hooks import HashlessTarget
from tests.engine.target_service.vllm_backend.cases import (
    assert_right,
    dense_prompt,
    engine_options,
    kept_prompt,
    wrong_share,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle

pytestmark = pytest.mark.nightly

STAGES = {"pipeline_parallel_size": 2, "enable_prefix_caching": False}


FAMILY = "qwen2"


@pytest.fixture(scope="module")
def engine(start: Start, device: str, every_core: None) -> HashlessTarget:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two pipeline stages need two GPUs")
    return start(HashlessTarget, **STAGES)


async def test_two_stages_are_the_oracles(engine: HashlessTarget, model: str) -> None:
    oracle = GenerationOracle(model)
    prompts = [kept_prompt(900, 300, seed=1), dense_prompt(200, seed=2), kept_prompt(90, 20, seed=3)]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"stages-{i}") for i, p in enumerate(prompts)))


async def test_without_positions_they_are_wrong(engine: HashlessTarget, model: str) -> None:
    await engine.falsify_positions("withheld")
    try:
        assert await wrong_share(engine, GenerationOracle(model), kept_prompt(900, 300, seed=1)) > 0.3
    finally:
        await engine.falsify_positions("right")


def test_drafts_in_the_v1_runner_are_refused(model: str, device: str) -> None:
    with pytest.raises(SkimError, match=r"with pipeline_parallel 2 vLLM drafts only in its V2 .* does not run ngram"):
        VllmTarget(
            model,
            decode={"method": "ngram", "max_draft_tokens": 2},
            speculative_config={"prompt_lookup_max": 2},
            **engine_options(device, **STAGES),
        )
