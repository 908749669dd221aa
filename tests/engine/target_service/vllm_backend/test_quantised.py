"""A target with 4-bit weights and an FP8 KV cache whose scales are in the checkpoint, over kept prompts.

The oracle has the weights that the 4 bits stand for, and a cache that is rounded in the same way. The engine runs in
float16, the oracle in float32.
"""

import shutil
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from kv_transfer.messages import KeptPrompt
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import build_target, collect, engine_options, kept_prompt
from tests.reference.fp8_cache import Fp8Cache, needs_fp8_cache
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.quantised import quantise

pytestmark = pytest.mark.nightly

K_SCALE, V_SCALE = 0.25, 0.5
TOLERANCE = 0.25
"""On log probabilities. In float16 one key of a hundred is rounded to another FP8 number than in float32."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folders of the oracle and of the engine."""
    exact = build_target(tmp_path_factory.mktemp("llama"), "llama")
    packed = shutil.copytree(exact, tmp_path_factory.mktemp("packed") / "llama")
    quantise(exact, str(packed), K_SCALE, V_SCALE)
    return exact, str(packed)


@pytest.fixture(scope="module")
def engine(models: tuple[str, str], device: str) -> Iterator[VllmTarget]:
    if device == "cuda":
        pytest.skip("FP8 caches on CUDA round queries, too")
    needs_fp8_cache()
    target = VllmTarget(models[1], **engine_options(device, dtype="float16", kv_cache_dtype="fp8"))
    yield target
    target.close()


async def test_kept_prompts(engine: VllmTarget, models: tuple[str, str]) -> None:
    prompt = kept_prompt(900, 300, seed=1)
    tokens, logprobs, _ = joined(await collect(engine, prompt))
    rounded = GenerationOracle(models[0], new_cache=partial(Fp8Cache, torch.float8_e4m3fn, K_SCALE, V_SCALE))
    assert rounded.largest_difference(prompt, tokens, logprobs) <= TOLERANCE
    # Controls: an exact cache, and positions that are withheld.
    others = [(GenerationOracle(models[0]), prompt), (rounded, KeptPrompt.dense(prompt.token_ids))]
    assert min(oracle.largest_difference(kept, tokens, logprobs) for oracle, kept in others) > 2 * TOLERANCE
