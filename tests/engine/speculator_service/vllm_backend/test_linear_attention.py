"""A speculator with linear attention in every second layer: the others are scored.

vLLM's CPU kernels of linear attention compute in bfloat16, so scores are compared by their correlation with the
oracle's. The prompts are some whose look-ahead tokens do not depend on rounding.
"""

import asyncio

import pytest
import torch

from kv_transfer.options import SelectionOptions
from tests.engine.speculator_service.vllm_backend.conftest import keys_of_other_layers
from tests.reference import scoring_oracle
from tests.reference.models import random_prompt

pytestmark = pytest.mark.nightly

CASES = [(31, 2), (700, 1), (300, 0)]
"""Lengths of prompts and look-aheads."""


@pytest.fixture(scope="module")
def rig(start):
    model = {"head_dim": 32, "layers": 4}
    return start("qwen3_next", model, dtype="bfloat16", max_num_batched_tokens=256, max_num_seqs=8, max_model_len=2048)


async def correlations(rig):
    """Of the scores of all cases, which run at once, with the oracle's."""
    cases = [(random_prompt(length, seed=length), SelectionOptions(look_ahead=count)) for length, count in CASES]
    answers = await asyncio.gather(*(rig.score(ids, options, f"r{i}") for i, (ids, options) in enumerate(cases)))
    found = []
    for (ids, options), answer in zip(cases, answers, strict=True):
        expected = scoring_oracle.score(rig.oracle, ids, options)
        assert answer.look_ahead_tokens == expected.look_ahead_tokens
        found.append(torch.corrcoef(torch.stack([answer.importance, expected.importance]))[0, 1].item())
    return found


async def test_scores(rig):
    assert min(await correlations(rig)) > 0.97


def test_it_does_not_draft_without_a_prefix_cache(start):
    """Each round would read the whole prompt again."""
    options = {"dtype": "bfloat16", "max_num_seqs": 2, "max_model_len": 256, "enable_prefix_caching": False}
    assert not start("qwen3_next", {"head_dim": 32}, **options).engine.supports_drafts


async def test_it_drafts(rig):
    assert rig.engine.supports_drafts


async def test_control_keys_of_another_layer_are_seen(rig):
    async with keys_of_other_layers(rig.engine):
        assert max(await correlations(rig)) < 0.9
