"""A DeepSeek-V2 target with MLA and plain RoPE: kept prompts against transformers, which has no latent cache."""

import asyncio

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from kv_transfer.messages import KeptPrompt
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    assert_right,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle, joined

pytestmark = pytest.mark.nightly

FAMILY = "deepseek_v2"


@pytest.fixture(scope="module")
def engine(start: Start, device: str) -> VllmTarget:
    if device == "cuda":
        pytest.skip("vLLM's MLA backends on CUDA do not run in float32")
    # The other backend of vLLM's CPU build, AMX_MLA, runs in bfloat16 only.
    return start(attention_config={"backend": "CPU_MLA"})


async def test_kept_and_dense_prompts(engine: VllmTarget, oracle: GenerationOracle) -> None:
    prompts = [kept_prompt(900, 300, seed=1), dense_prompt(200, seed=2), kept_prompt(7900, 500, seed=3)]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"mixed-{i}") for i, p in enumerate(prompts)))


async def test_control_the_comparison_sees_wrong_positions(engine: VllmTarget, oracle: GenerationOracle) -> None:
    prompt = kept_prompt(900, 300, seed=7)
    tokens, _, _ = joined(await collect(engine, KeptPrompt.dense(prompt.token_ids)))
    assert oracle.wrong_tokens(prompt, tokens) > 16


def test_the_rotary_operator_of_the_cpu_build_is_still_wrong() -> None:
    """If this fails, vLLM has repaired it: then `vllm_hooks.engine` need not switch it off for MLA."""
    positions, query, key = torch.arange(10), torch.randn(10, 4, 64), torch.randn(10, 1, 64)
    rotated = []
    for custom_ops in (["all"], ["all", "-rotary_embedding"]):
        with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=custom_ops))):
            rope = RotaryEmbedding(64, 64, 128, 10000.0, False, torch.float32)
            rotated.append(rope(positions, query.clone(), key.clone())[0])
    right, _ = rope.forward_native(positions, query, key)
    assert not torch.allclose(rotated[0], right, atol=0.1)
    assert torch.equal(rotated[1], right)
