"""Speculators whose layers are not all alike: windows beside full attention, soft caps, sinks, scales of their own.

Each has four layers; every second one attends to the whole prompt and is scored. Prefill comes in chunks of 256 tokens.
"""

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from skim_common.errors import ModelError
from speculator_service.vllm_backend.engine import VllmSpeculator
from tests.engine.speculator_service.vllm_backend.by_heads import error, profile_of
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE, kept_of
from tests.reference.models import WINDOW, build_model, random_prompt

pytestmark = pytest.mark.nightly

FORGOTTEN = {"gemma2": {"soft_cap": 0.0}, "gemma3": {"scale": 32**-0.5}, "gpt_oss": {"sinks": None}}
"""What a wrong implementation would leave out of each family's formula."""

PROMPT = random_prompt(300, seed=1)
OPTIONS = SelectionOptions(look_ahead=4)
OFFERED = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 2048}


def sinks_as_the_cpu_wants(worker):
    """vLLM's CPU attention reads sinks as bfloat16, whatever the model's dtype. Those of the tests are exact in it."""
    for layer in worker.vllm_config.compilation_config.static_forward_context.values():
        if getattr(layer, "has_sink", False):
            layer.impl.sinks = torch.nn.Parameter(layer.impl.sinks.bfloat16(), requires_grad=False)


@pytest.fixture(scope="module", params=FORGOTTEN)
def rig(request, start):
    family = request.param
    made = start(family, {"head_dim": 32, "layers": 4}, **OFFERED)
    made.family = family
    return made


async def test_scores(rig):
    await rig.call(sinks_as_the_cpu_wants)
    cases = [(random_prompt(length, seed=length), OPTIONS) for length in (1, 31, WINDOW, 700)]
    cases += [(PROMPT, SelectionOptions(look_ahead=8, layers=layers)) for layers in ("all", "last1")]
    cases.append((PROMPT, SelectionOptions(aggregation="head_max_layer_mean")))
    assert max(await rig.errors(cases)) <= TOLERANCE
    longer = PROMPT + random_prompt(90, seed=6)  # after a cached prefix
    assert await rig.errors([(longer, OPTIONS)]) <= [TOLERANCE]
    assert rig.cached[0] > WINDOW


async def test_heads_of_the_layers_that_see_the_whole_prompt(rig):
    """Layers count as in the config."""
    await rig.call(sinks_as_the_cpu_wants)
    heads = [(1, 0, 1.0), (3, 1, 2.0), (3, 3, 1.0)]
    assert await error(rig, PROMPT, (250, 280), profile_of(heads)) <= TOLERANCE


async def test_control_an_incomplete_formula_is_seen(rig):
    left_out = FORGOTTEN[rig.family]

    def incomplete(worker):
        from speculator_service.vllm_backend import worker as module

        module.right_formula = module.attention_formula
        module.attention_formula = lambda layer: module.right_formula(layer)._replace(**left_out)

    def as_before(worker):
        from speculator_service.vllm_backend import worker as module

        module.attention_formula = module.right_formula

    await rig.call(incomplete)
    try:
        assert (await rig.errors([(PROMPT, OPTIONS)]))[0] > 10 * TOLERANCE
    finally:
        await rig.call(as_before)
    assert await rig.errors([(PROMPT, OPTIONS)]) <= [TOLERANCE]


async def test_drafts_continue_the_prompt(rig):
    """Rounds over cached and partial blocks, also after a rejected draft, of a whole and of a kept prompt."""
    prompt = await rig.keep("whole", random_prompt(330, seed=2), OPTIONS)
    kept = kept_of(random_prompt(500, seed=3))
    await rig.engine.open_session("kept", kept)
    for session, read in (("whole", prompt), ("kept", kept)):
        answer = np.array([20, 30], np.int32)
        for _ in range(3):
            drafted = await rig.engine.draft(session, answer, 6)
            rig.check_greedy(read, answer, drafted, 6)
            answer = np.concatenate([answer, drafted.tokens[:3], [40]]).astype(np.int32)
    assert rig.engine.counts["rebuilt"] == 0


async def test_a_window_of_all_layers_is_full_attention_within_it(start):
    options = {**OFFERED, "max_model_len": 512}
    rig = start("mistral", {"head_dim": 32, "sliding_window": 512}, **options)
    assert rig.engine.info.max_model_len == 511
    assert max(await rig.errors([(random_prompt(length, seed=4), OPTIONS) for length in (300, 507)])) <= TOLERANCE
    prompt = await rig.keep("whole", random_prompt(400, seed=5), OPTIONS)
    answer = np.array([20], np.int32)
    rig.check_greedy(prompt, answer, await rig.engine.draft("whole", answer, 6), 6)


def test_a_longer_prompt_than_the_window_of_all_layers_is_refused(tmp_path):
    path = build_model(tmp_path, "mistral", head_dim=32, sliding_window=512)
    with pytest.raises(ModelError, match="sliding-window attention in every layer; set max_model_len to at most 512"):
        VllmSpeculator(path, dtype="float32", max_model_len=513)
