"""The model runner that GPUs use, on CPU: vLLM's V2 runner in Triton's interpreter.

The engine's processes find `v2_on_cpu/sitecustomize.py` first; this process keeps vLLM as it is on CPU.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.by_heads import errors, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import EARLY_PROMPT, TOLERANCE, kept_of, tokens_a_step
from tests.reference.models import random_prompt
from tests.reference.segments import shuffled

pytestmark = pytest.mark.nightly
SPAWNED = True
PROFILE = profile_of([(0, 1, 1.0), (1, 0, 2.0)])


@pytest.fixture(scope="module")
def rig(start, device):
    if device == "cuda":
        pytest.skip("on a GPU all other modules already run on the V2 runner")
    small = {"max_model_len": 256, "num_gpu_blocks_override": 14, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    # The interpreter has no log1p, with which vLLM draws in float32.
    small["use_fp64_gumbel"] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "v2_on_cpu"))
        yield start("llama", {"head_dim": 64}, **small)


async def test_the_v2_runner_scores(rig):
    """Prompts that are chunked, end early or are preempted, in one batch; then again from the prefix cache."""
    cases = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=20)) for length in (100, 113, 126, 139)]
    await rig.call(tokens_a_step(2))
    cases += [(EARLY_PROMPT, SelectionOptions(look_ahead=8)), ([20], SelectionOptions(look_ahead=0))]
    questions = [(random_prompt(90, seed=9), (55, 75)), (random_prompt(80, seed=8), None)]
    before = (await rig.counts())["resumed"]
    assert max(await rig.errors(cases)) <= TOLERANCE
    for _ in range(2):
        assert max(await errors(rig, questions, PROFILE)) <= TOLERANCE
        assert await rig.errors(cases[:1]) <= [TOLERANCE]
    assert rig.cached[0] > 0
    assert (await rig.counts())["resumed"] > before

    def running(worker):
        return type(worker.model_runner).__module__

    assert await rig.call(running) == ["vllm.v1.worker.cpu.model_runner"]


async def test_the_v2_runner_drafts(rig):
    """Full and kept sessions, with greedy and sampled drafts in one batch, after a rejected draft."""
    options, answer = SelectionOptions(look_ahead=1), np.array([30, 40], np.int32)
    prompts = {"full": await rig.keep("full", random_prompt(70, seed=5), options), "kept": kept_of(random_prompt(100))}
    prompts["shuffled"] = shuffled(prompts["kept"])
    for name in ("kept", "shuffled"):
        await rig.engine.open_session(name, prompts[name])
    await rig.engine.draft("full", answer[:1], 2)
    greedy = (rig.engine.draft(name, answer, 3) for name in prompts)
    sampled = (rig.engine.draft(name, answer, 3, temperature=0.9, top_m=16) for name in prompts)
    drafts = await asyncio.gather(*greedy, *sampled)
    for prompt, likeliest, random in zip(prompts.values(), drafts[:3], drafts[3:], strict=True):
        rig.check_greedy(prompt, answer, likeliest, 3)
        rig.check_sampled(prompt, answer, random, 3, 0.9, 16)
    await rig.call(tokens_a_step(17))
    before = await rig.steps()
    rig.check_greedy(prompts["kept"], answer, await rig.engine.draft("kept", answer, 3), 3)
    assert await rig.steps() - before == 1


async def test_control_positions_that_are_not_restored_are_seen(rig):
    """Read the kept tokens without their original positions: the drafts must differ."""

    def withhold(worker):
        from vllm_hooks import positions

        positions.position_map = lambda extra_args: None

    await rig.call(withhold)
    prompt = kept_of(random_prompt(100, seed=1), seed=1)
    await rig.engine.open_session("withheld", prompt)
    drafted = await rig.engine.draft("withheld", np.empty(0, np.int32), 8)
    assert rig.generation.wrong_tokens(prompt, drafted.tokens.tolist()) > 0
