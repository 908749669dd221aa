"""A Qwen3 (QK norm, head size 128, GQA) on two ranks: each rank has half of the heads."""

import asyncio
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.by_heads import error, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import EARLY_PROMPT, TOLERANCE, kept_of
from tests.reference.models import random_prompt
from vllm_hooks.start_up import STACKS_SIGNAL

LONGEST = True


@pytest.fixture(scope="module")
def rig(start, device, every_core):
    if device == "cuda":
        import torch

        if torch.cuda.device_count() < 2:
            pytest.skip("tensor parallel 2 needs two GPUs")
    return start("qwen3", {"head_dim": 128, "heads": 4, "kv_heads": 2}, tensor_parallel=2, max_num_batched_tokens=256)


async def test_two_ranks_score_as_one(rig):
    cases = [
        (random_prompt(length, seed=length), SelectionOptions(look_ahead=look_ahead, aggregation=aggregation))
        for length, look_ahead in ((1, 1), (100, 8), (700, 0), (1500, 8))
        for aggregation in ("max", "head_max_layer_mean")
    ]
    cases.append((EARLY_PROMPT, SelectionOptions(look_ahead=8)))
    assert max(await rig.errors(cases)) <= TOLERANCE


HEADS_OF_BOTH = profile_of([(0, 1, 1.0), (1, 0, 2.0), (1, 3, 3.0)])
HEADS_OF_ONE = profile_of([(1, 2, 1.0), (1, 3, 1.0)], question=0.0)


@pytest.mark.parametrize("profile", [HEADS_OF_BOTH, HEADS_OF_ONE])
async def test_the_masses_of_two_ranks_add_up(rig, profile):
    for length, question in ((1, None), (300, (250, 280)), (300, (10, 20))):
        assert await error(rig, random_prompt(length, seed=length), question, profile) <= TOLERANCE


async def test_every_head_of_both_ranks_is_read(rig):
    heads, masses = await rig.engine.head_masses("m", np.array(random_prompt(200), np.int32), (190, 200))
    assert heads == [(layer, head) for layer in range(len(heads) // 4) for head in range(4)]
    assert (masses.sum(-1) - 1).abs().max() <= TOLERANCE


async def test_one_stopped_rank_keeps_the_sign_of_life_back(rig):
    await rig.engine.sign_of_life()
    [core] = rig.engine._engine.engine_core.resources.engine_manager.processes
    rank = next(
        child for child in psutil.Process(core.pid).children() if "Worker" in f"{child.name()} {child.cmdline()}"
    )
    rank.suspend()
    try:
        sign = asyncio.create_task(rig.engine.sign_of_life())
        assert await asyncio.wait({sign}, timeout=1.0) == (set(), {sign})
    finally:
        rank.resume()
    await sign


async def test_every_process_shows_its_stacks_and_goes_on(rig):
    """Without a handler the signal ends a process. What a handler writes is tested in tests/unit/actors."""
    [core] = rig.engine._engine.engine_core.resources.engine_manager.processes
    for process in [psutil.Process(core.pid), *psutil.Process(core.pid).children()]:
        if "Worker" in f"{process.name()} {process.cmdline()}" or process.pid == core.pid:
            process.send_signal(STACKS_SIGNAL)
    await rig.engine.sign_of_life()


async def test_two_ranks_draft_as_one(rig):
    """Greedy and sampled drafts in one batch, for a full and a kept session, after a rejected draft."""
    options, answer = SelectionOptions(look_ahead=2), np.array([30, 40, 50], np.int32)
    prompts = {"full": await rig.keep("full", random_prompt(300, seed=5), options), "kept": kept_of(random_prompt(300))}
    await rig.engine.open_session("kept", prompts["kept"])
    for name, prompt in prompts.items():
        rig.check_greedy(prompt, answer[:1], await rig.engine.draft(name, answer[:1], 4), 4)
    greedy = (rig.engine.draft(name, answer, 4) for name in prompts)
    sampled = (rig.engine.draft(name, answer, 4, temperature=0.9, top_m=16) for name in prompts)
    drafts = await asyncio.gather(*greedy, *sampled)
    for prompt, likeliest, random in zip(prompts.values(), drafts[:2], drafts[2:], strict=True):
        rig.check_greedy(prompt, answer, likeliest, 4)
        rig.check_sampled(prompt, answer, random, 4, 0.9, 16)


async def test_control_without_the_sum_a_rank_misses_heads(rig):
    def skip(worker):
        from speculator_service.vllm_backend import head_scoring

        head_scoring.torch = SimpleNamespace(**vars(torch))
        head_scoring.torch.distributed = SimpleNamespace(all_reduce=lambda *args, **kwargs: None)

    def as_before(worker):
        from speculator_service.vllm_backend import head_scoring

        head_scoring.torch = torch

    await rig.call(skip)
    try:
        assert await error(rig, random_prompt(200, seed=2), (150, 190), HEADS_OF_BOTH) > 10 * TOLERANCE
    finally:
        await rig.call(as_before)


@pytest.mark.parametrize("aggregation", ["max", "head_max_layer_mean"])
async def test_control_without_the_all_reduce_a_rank_misses_heads(rig, aggregation):
    def skip(worker):
        import torch

        worker._right = torch.distributed.all_reduce

        def without_maxima(tensor, op=torch.distributed.ReduceOp.SUM, **kwargs):
            """The all-reduce of the scoring is the only one with a maximum. The others may be the model's own."""
            return None if op == torch.distributed.ReduceOp.MAX else worker._right(tensor, op=op, **kwargs)

        torch.distributed.all_reduce = without_maxima

    def as_before(worker):
        import torch

        torch.distributed.all_reduce = worker._right

    await rig.call(skip)
    try:
        case = (random_prompt(200, seed=2), SelectionOptions(look_ahead=2, aggregation=aggregation))
        assert (await rig.errors([case]))[0] > 10 * TOLERANCE
    finally:
        await rig.call(as_before)
