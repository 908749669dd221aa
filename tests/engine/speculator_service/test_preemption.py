"""A Qwen2 (QKV bias, 128-wide heads, one KV head each) whose KV cache is too small for its batch."""

import pytest

from kv_transfer.messages import SelectionOptions
from tests.engine.speculator_service.conftest import TOLERANCE
from tests.reference.models import random_prompt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rig(start):
    model = {"head_dim": 128, "heads": 2, "kv_heads": 2}
    return start(
        "qwen2", model, block_size=32, max_model_len=512, num_gpu_blocks_override=24, max_num_batched_tokens=256
    )


async def test_preempted_prompts_score_as_if_they_had_not_been(rig):
    cases = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=40)) for length in range(150, 222, 12)]
    assert max(await rig.errors(cases)) <= TOLERANCE
    assert (await rig.engine.worker_stats())[0]["resumed"] > 0


async def test_control_a_forgotten_query_is_seen(rig):
    """Lose what was captured before the preemption: the steps are then missing, and the comparison must fail."""

    def forget(worker):
        update = worker._ledger.update
        worker._right = update

        def forgetful(output):
            before = worker._ledger.resumed
            wanted = update(output)
            if worker._ledger.resumed > before:
                for request in worker._ledger.requests.values():
                    request.queries = {step: query * 0 for step, query in request.queries.items()}
            return wanted

        worker._ledger.update = forgetful

    def as_before(worker):
        worker._ledger.update = worker._right

    cases = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=40)) for length in range(151, 223, 12)]
    await rig.call(forget)
    try:
        assert max(await rig.errors(cases)) > 10 * TOLERANCE
    finally:
        await rig.call(as_before)
