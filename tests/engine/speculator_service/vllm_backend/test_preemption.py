"""A Qwen2 (QKV bias, head size 128, one KV head per query head) whose KV cache is too small for its batch."""

import asyncio

import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.by_heads import errors, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE, tokens_a_step
from tests.reference.models import random_prompt

pytestmark = pytest.mark.nightly

PROFILE = profile_of([(0, 1, 1.0), (1, 0, 2.0)])


@pytest.fixture(scope="module")
def rig(start):
    model = {"head_dim": 128, "heads": 2, "kv_heads": 2}
    return start(
        "qwen2", model, block_size=32, max_model_len=512, num_gpu_blocks_override=24, max_num_batched_tokens=256
    )


async def test_preempted_prompts_score_as_if_they_had_not_been(rig):
    await rig.call(tokens_a_step(2))
    before = (await rig.counts())["resumed"]
    cases = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=40)) for length in range(150, 222, 12)]
    assert max(await rig.errors(cases)) <= TOLERANCE
    assert (await rig.counts())["resumed"] > before


async def test_preempted_questions_score_as_if_they_had_not_been(rig):
    """They are read in chunks while other prompts decode, which need their blocks."""
    await rig.call(tokens_a_step(2))
    before = (await rig.counts())["resumed"]
    beside = [(random_prompt(n, seed=2000 + n), SelectionOptions(look_ahead=40)) for n in range(150, 222, 12)]
    questions = [(random_prompt(n, seed=1000 + n), (n // 2, n // 2 + 30)) for n in range(450, 500, 12)]
    by_attention, by_heads = await asyncio.gather(rig.errors(beside), errors(rig, questions, PROFILE))
    assert max(*by_attention, *by_heads) <= TOLERANCE
    assert (await rig.counts())["resumed"] > before


async def test_drafts_while_sessions_lose_their_kv_to_prompts_and_each_other(rig):
    """Six sessions draft while other prompts are scored. The cache holds only two of their prompts."""
    options = SelectionOptions(look_ahead=4)
    prompts = {f"s{n}": await rig.keep(f"s{n}", random_prompt(n, seed=n), options) for n in range(250, 310, 10)}
    before = dict(rig.engine.counts)

    async def draft(name, prompt):
        answer = np.empty(0, np.int32)
        for _ in range(3):
            drafted = await rig.engine.draft(name, answer, 5)
            rig.check_greedy(prompt, answer, drafted, 5)
            answer = np.concatenate([answer, drafted.tokens[:3], np.array([30], np.int32)])
        await rig.engine.close_session(name)

    scoring = rig.errors([(random_prompt(length, seed=length), options) for length in (300, 310, 320)])
    *_, errors = await asyncio.gather(*(draft(*session) for session in prompts.items()), scoring)
    assert max(errors) <= TOLERANCE
    after = dict(rig.engine.counts)
    assert after["rebuilt"] - before["rebuilt"] >= 4
    assert not rig.engine._sessions


async def test_control_a_forgotten_query_is_seen(rig):
    """Delete the queries captured before the preemption. Steps are then missing, and the comparison must fail."""

    def forget(worker):
        update = worker._ledger.update
        worker._right = update

        def forgetful(output):
            resumed = output.scheduled_cached_reqs.resumed_req_ids & set(worker._ledger.requests)
            wanted = update(output)
            if resumed:
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
