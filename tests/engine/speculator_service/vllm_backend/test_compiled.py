"""A Mistral (head size 64, one KV head) as users run it: compiled, with vLLM's defaults."""

import pytest

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt

pytestmark = pytest.mark.nightly
SPAWNED = True  # engines that compile nothing share the fork server, and torch reads once whether it may


async def test_compiled_models_are_scored_too(start):
    rig = start("mistral", {"head_dim": 64, "heads": 4, "kv_heads": 1}, enforce_eager=False)
    cases = [
        (random_prompt(length, seed=length), SelectionOptions(look_ahead=look_ahead))
        for length, look_ahead in ((1, 0), (31, 8), (100, 1), (1500, 8))
    ]
    assert max(await rig.errors(cases)) <= TOLERANCE
