"""Scores by retrieval heads, against the oracle: heads of several layers, rows, batches, the prefix cache, fallback."""

import asyncio
import logging

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from speculator_service.start.find_heads import HeadReader
from tests.engine.speculator_service.vllm_backend.by_heads import HEADS, error, expected, profile_of, scored_by
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

ITS_HEADS = ((1, 0, 3.0), (1, 3, 1.0), (4, 2, 2.0), (0, 1, 2.0))
PROFILE = profile_of(ITS_HEADS)


@pytest.fixture(scope="module")
def rig(llama_rig):
    return llama_rig


@pytest.mark.parametrize(
    ("length", "question"),
    [(300, (290, 300)), (300, (100, 290)), (700, (400, 420)), (300, None), (9, None), (1, None)],
)
async def test_scores_are_the_mass_of_the_profiles_heads(rig, length, question):
    assert await error(rig, random_prompt(length, seed=length), question, PROFILE) <= TOLERANCE


async def test_a_batch_of_both_ways_of_scoring(rig):
    prompts, question = [random_prompt(200, seed=seed) for seed in (1, 2, 3)], (180, 190)
    with scored_by(rig, PROFILE):
        by_attention, *by_heads = await asyncio.gather(
            rig.score(prompts[0], SelectionOptions(look_ahead=2), "a"),
            *(rig.score(prompt, HEADS, f"h{i}", question) for i, prompt in enumerate(prompts)),
        )
    assert rig.compare(prompts[0], SelectionOptions(look_ahead=2), by_attention) <= TOLERANCE
    for prompt, answer in zip(prompts, by_heads, strict=True):
        assert answer.importance.dtype == torch.float32
        assert (answer.importance - expected(rig, prompt, question, PROFILE)).abs().max() <= TOLERANCE
        assert answer.importance.sum().item() == pytest.approx(1, abs=1e-5)  # the mass is absolute


async def test_nothing_is_decoded_and_a_later_prompt_finds_the_keys(rig):
    first = random_prompt(300, seed=21)
    before = await rig.steps()
    assert await error(rig, first, (280, 295), PROFILE) <= TOLERANCE
    assert await rig.steps() - before == 2  # the prompt is longer than the 256 tokens of a step
    assert await error(rig, [*first[:280], *random_prompt(30, seed=22)], (285, 300), PROFILE) <= TOLERANCE
    assert rig.cached[0] > 0


async def test_without_weight_for_the_question_its_rows_are_not_computed_again(rig):
    profile, prompt = profile_of(ITS_HEADS, question=0.0), random_prompt(300, seed=23)
    assert await error(rig, prompt, (10, 40), profile) <= TOLERANCE
    assert await error(rig, prompt, (10, 40), profile) <= TOLERANCE
    assert rig.cached[0] > 200


async def test_the_mass_of_every_head_adds_up_to_the_scores(rig):
    """By which retrieval heads are found; an engine that is no HeadReader is silently left without."""
    assert isinstance(rig.engine, HeadReader)
    prompt, question = random_prompt(300, seed=24), (280, 295)
    heads, masses = await rig.engine.head_masses("m", np.array(prompt, np.int32), question)
    assert heads == [(layer, head) for layer in range(5) for head in range(4)]
    assert masses.shape == (2, 20, 300)
    by_rows = 0.25 * masses[0] + 0.75 * masses[1]
    summed = sum(weight / 8 * by_rows[heads.index((layer, head))] for layer, head, weight in ITS_HEADS)
    assert (summed - expected(rig, prompt, question, PROFILE)).abs().max() <= TOLERANCE


async def test_a_token_has_the_best_of_several_questions(rig):
    prompt, questions = random_prompt(300, seed=27), ((150, 160), (280, 295))
    asked = ScoreRequest("several", np.array(prompt, np.int32), HEADS, questions=questions)
    with scored_by(rig, PROFILE):
        found = torch.from_numpy((await rig.engine.score(asked)).importance)
    each = [expected(rig, prompt, question, PROFILE) for question in questions]
    assert (found - torch.maximum(*each)).abs().max() <= TOLERANCE
    assert (each[0] - each[1]).abs().max() > 10 * TOLERANCE


async def test_control_shuffled_heads_give_other_scores(rig):
    shuffled = profile_of([(layer, (head + 1) % 4, weight) for layer, head, weight in ITS_HEADS])
    assert await error(rig, random_prompt(300, seed=25), (280, 295), shuffled, wanted=PROFILE) > 10 * TOLERANCE


async def test_control_a_row_sees_no_later_keys(rig):
    def blind(worker):
        worker._right = worker._scoring.masses
        worker._scoring.masses = lambda layers, row_weights, visible: worker._right(layers, row_weights)

    def as_before(worker):
        worker._scoring.masses = worker._right

    await rig.call(blind)
    try:
        assert await error(rig, random_prompt(300, seed=26), (150, 160), PROFILE) > 10 * TOLERANCE
    finally:
        await rig.call(as_before)


async def test_without_a_profile_attention_scores_and_the_log_says_so_once(rig, caplog):
    case = random_prompt(200, seed=27)
    with scored_by(rig, None), caplog.at_level(logging.WARNING):
        by_heads = await rig.score(case, HEADS)
        await rig.score(case, HEADS)
    assert ["has no head profile" in message for message in caplog.messages] == [True]
    by_attention = await rig.score(case, SelectionOptions())
    assert torch.equal(by_heads.importance, by_attention.importance)
    assert by_heads.look_ahead_tokens == by_attention.look_ahead_tokens != []
