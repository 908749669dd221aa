"""Scores of a DeepSeek-V3 with MLA, low-rank queries and YaRN against the oracle, which has no latent cache."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from speculator_service.vllm_backend.keys import absorbed
from tests.engine.speculator_service.vllm_backend.by_heads import error, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt

pytestmark = pytest.mark.nightly

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@pytest.fixture(scope="module")
def rig(start, device):
    if device == "cuda":
        pytest.skip("vLLM's MLA backends on CUDA do not run in float32")
    # The other backend of vLLM's CPU build, AMX_MLA, runs in bfloat16 only.
    return start("deepseek_v3", {"rope": YARN}, attention_config={"backend": "CPU_MLA"}, max_model_len=4096)


async def test_scores(rig):
    cases = [
        (random_prompt(length, seed=length), SelectionOptions(look_ahead=look_ahead, aggregation=aggregation))
        for length, look_ahead, aggregation in (
            (1, 8, "max"),
            (40, 0, "max"),
            (300, 4, "head_max_layer_mean"),
            (700, 8, "max"),
        )
    ]
    assert max(await rig.errors(cases)) <= TOLERANCE


async def test_heads(rig):
    """From the prefix cache, the question takes the path of a prefill with context."""
    profile = profile_of([(0, 1, 1.0), (1, 0, 2.0), (1, 3, 3.0)])
    for _ in range(2):
        assert await error(rig, random_prompt(300, seed=6), (250, 290), profile) <= TOLERANCE


async def test_control_the_latent_part_of_the_key_matters(rig):
    def only_rotary(worker):
        worker._right = [layer.W_UK_T for layer in worker._layers]
        for layer in worker._layers:
            layer.W_UK_T = torch.nn.Parameter(torch.zeros_like(layer.W_UK_T), requires_grad=False)

    def as_before(worker):
        for layer, right in zip(worker._layers, worker._right, strict=True):
            layer.W_UK_T = right

    case = random_prompt(300, seed=2), SelectionOptions(look_ahead=0)
    await rig.call(only_rotary)
    try:
        assert (await rig.errors([case]))[0] > 10 * TOLERANCE
    finally:
        await rig.call(as_before)


async def test_drafts(rig):
    """Several tokens after a cached context take vLLM's third path, prefill with context."""
    prompt = await rig.keep("s", random_prompt(300, seed=3), SelectionOptions(look_ahead=2))
    for answer in (np.empty(0, np.int32), np.array([70, 71, 72], np.int32)):
        rig.check_greedy(prompt, answer, await rig.engine.draft("s", answer, 4), 4)


def test_packed_weights_give_the_same_queries():
    """Of the backend AMX_MLA, which keeps no other copy of the weights."""
    if not torch.cpu._is_amx_tile_supported():
        pytest.skip("this CPU has no AMX")
    torch.manual_seed(0)
    w_uk_t = torch.randn(4, 64, 512, dtype=torch.bfloat16)
    sizes = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "kv_lora_rank": 512}
    packed = torch.ops._C.convert_weight_packed(w_uk_t.transpose(1, 2).contiguous())
    amx = SimpleNamespace(is_amx_bmm_enabled=True, impl=SimpleNamespace(_w_uk_packed=packed), **sizes)
    plain = SimpleNamespace(is_amx_bmm_enabled=False, W_UK_T=w_uk_t, **sizes)
    queries = torch.randn(9, 4, 128, dtype=torch.bfloat16)
    torch.testing.assert_close(absorbed(amx, queries), absorbed(plain, queries), rtol=2e-2, atol=1e-2)
