"""Speculators with M-RoPE: a prompt of text has the same position three times."""

import pytest

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE, keys_of_other_layers
from tests.reference.models import random_prompt
from tests.reference.text_alone import run_without_images

pytestmark = pytest.mark.nightly
SPAWNED = True

CASES = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=4)) for length in (1, 31, 700)]


@pytest.fixture(scope="module")
def rig(start):
    with pytest.MonkeyPatch.context() as patch:
        run_without_images(patch)
        yield start("qwen3_vl", {"layers": 4}, max_num_batched_tokens=256, max_num_seqs=8, max_model_len=2048)


async def test_scores(rig):
    assert max(await rig.errors(CASES)) <= TOLERANCE


async def test_control_keys_of_another_layer_are_seen(rig):
    async with keys_of_other_layers(rig.engine):
        assert max(await rig.errors(CASES[1:])) > 10 * TOLERANCE
