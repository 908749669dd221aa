"""A Mistral (64-wide heads, one KV head for all) as users run it: compiled, unchunked, on vLLM's own defaults.

Also the asynchronous outputs of a GPU engine, which reach the host after the scores were computed.
"""

import pytest

from kv_transfer.messages import SelectionOptions
from tests.engine.speculator_service.conftest import EARLY_PROMPT, TOLERANCE
from tests.reference.models import random_prompt

pytestmark = pytest.mark.slow

CASES = [
    (random_prompt(length, seed=length), SelectionOptions(look_ahead=look_ahead))
    for length, look_ahead in ((1, 0), (31, 8), (100, 1), (1500, 8))
]


@pytest.fixture(scope="module")
def rig(start):
    return start("mistral", {"head_dim": 64, "heads": 4, "kv_heads": 1}, enforce_eager=False)


async def test_compiled_models_are_scored_too(rig):
    assert max(await rig.errors(CASES)) <= TOLERANCE


async def test_outputs_that_come_later(rig, device):
    if device != "cpu":
        pytest.skip("a GPU engine's outputs all come later")

    def make_late(worker):
        from vllm.v1.outputs import AsyncModelRunnerOutput

        from speculator_service import vllm_worker

        class Late(AsyncModelRunnerOutput):
            def __init__(self, output):
                self.output = output

            def get_output(self):
                return self.output

        base = vllm_worker.PlatformWorker
        sample = base.sample_tokens
        base.sample_tokens = lambda self, grammar: Late(sample(self, grammar))

    await rig.call(make_late)
    assert max(await rig.errors([*CASES, (EARLY_PROMPT, SelectionOptions(look_ahead=8))])) <= TOLERANCE
