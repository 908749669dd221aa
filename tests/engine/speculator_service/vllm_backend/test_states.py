"""A speculator with a state space (Falcon-H1, whose kernels on CPU compute in float32): its states are cached.

Its blocks have 96 tokens, and a state is found at their ends and at the last multiple of 32 tokens of a prompt. The V2
runner runs in Triton's interpreter. On processors with AVX512-BF16, vLLM 0.29.0 cannot load such a model in float32.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.by_heads import error, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE, follow, kept_of
from tests.reference.models import random_prompt

pytestmark = pytest.mark.skipif(
    torch.cpu._is_avx512_bf16_supported(),
    reason="with AVX512-BF16, vLLM packs the weights of a convolution, in bfloat16 alone (causal_conv1d_weight_pack)",
)
SPAWNED = True
LENGTHS = [1, 31, 32, 95, 96, 97, 128, 192, 300]
"""Of prompts: also those that end with a state that is cached."""


@pytest.fixture(scope="module", params=["v1", pytest.param("v2", marks=pytest.mark.nightly)])
def rig(start, request):
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 1000}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "v2":
            folder = Path(__file__).parent / "v2_on_cpu"
            patch.setenv("PYTHONPATH", str(folder))
            # The interpreter has no log1p, with which vLLM draws in float32.
            options |= {"use_fp64_gumbel": True, "num_gpu_blocks_override": 200}
        yield start("falcon_h1", {"layers": 2, "head_dim": 32, "max_position": 1024}, **options)


@pytest.fixture
def rounds(request):
    """Of each session. The interpreter is slow."""
    return 3 if "v2" in request.node.name else 12


async def sessions(rig, lengths):
    prompts = {}
    for length in lengths:
        name = f"{length} tokens"
        prompts[name] = await rig.keep(name, random_prompt(length, seed=length), SelectionOptions(look_ahead=3))
    for seed, length in ((1, 120), (2, 290)):
        prompts[f"kept {length}"] = kept_of(random_prompt(length, seed=length), seed)
        await rig.engine.open_session(f"kept {length}", prompts[f"kept {length}"])
    return prompts


async def test_drafts_are_the_greedy_continuation_whatever_was_accepted(rig, rounds):
    """A rejected draft leaves its state behind. Each round begins with one that was cached before."""
    prompts = await sessions(rig, LENGTHS)
    await asyncio.gather(*(follow(rig, name, prompt, rounds, i) for i, (name, prompt) in enumerate(prompts.items())))
    assert rig.engine.counts["rollbacks"] > rounds


async def test_a_round_computes_little_again(rig):
    """At most the unit of a hit, beside what was accepted."""
    prompt = await rig.keep("cached", random_prompt(310, seed=17), SelectionOptions(look_ahead=3))
    answer = np.array(random_prompt(9, seed=18), np.int32)
    asked = np.concatenate([prompt.token_ids, answer])
    found = []
    generate = rig.engine._generate

    async def noted(*args):
        found.append(await generate(*args))
        return found[-1]

    rig.engine._generate = noted
    try:
        drafted = await rig.engine.draft("cached", answer, 4)
    finally:
        del rig.engine._generate
    rig.check_greedy(prompt, answer, drafted, 4)
    assert asked.size - found[0].num_cached_tokens <= 32 + answer.size


async def test_scores_of_cached_prompts(rig):
    """A question's rows are computed; a document that was read before is found up to a state before the question."""
    document, profile = random_prompt(250, seed=20), profile_of(((0, 1, 1.0), (1, 3, 2.0)))
    cached = []
    for _ in range(2):
        for seed in (21, 22, 21):
            ids = [*document, *random_prompt(20, seed=seed)]
            assert await error(rig, ids, (250, 270), profile) <= TOLERANCE
            cached += rig.cached
        assert await rig.errors([(document, SelectionOptions(look_ahead=2))]) <= [TOLERANCE]
        cached += rig.cached
    assert cached == [0, 192, 192, 192, 224, 224, 224, 224]


async def test_control_a_state_that_is_overwritten_is_seen(rig, rounds):
    """Let synthetic steps follow although vLLM has not copied the cached state yet."""

    def allow(worker):
        from speculator_service.vllm_backend.multi_step import MultiStepScheduler

        worker.before = MultiStepScheduler._ends_in_a_cached_state
        MultiStepScheduler._ends_in_a_cached_state = lambda self, request: False

    def as_before(worker):
        from speculator_service.vllm_backend.multi_step import MultiStepScheduler

        MultiStepScheduler._ends_in_a_cached_state = worker.before

    await rig.call(allow)
    try:
        options = SelectionOptions(look_ahead=3)
        prompts = {
            f"control {length}": await rig.keep(f"control {length}", random_prompt(length, seed=1000 + length), options)
            for length in (32, 64, 128)
        }
        calls = [follow(rig, name, prompt, rounds, seed) for seed, (name, prompt) in enumerate(prompts.items())]
        with pytest.raises(AssertionError):
            await asyncio.gather(*calls)
    finally:
        await rig.call(as_before)
