"""Drafts get half of the time beside prompts."""

import pytest

from speculator_service.vllm_backend.turns import TimeSlices

PROMPT_S, DRAFTS_S = 0.06, 0.005


def test_drafts_get_half_of_the_time_beside_prompts():
    now = [0.0]
    slices = TimeSlices(lambda: now[0])
    spent = {True: 0.0, False: 0.0}
    for _ in range(5000):
        alone = slices.begin(drafts=True, prompts=True)
        took = DRAFTS_S if alone else PROMPT_S
        now[0] += took
        spent[alone] += took
    assert spent[True] / sum(spent.values()) == pytest.approx(0.5, abs=0.03)


def test_time_without_prompts_gives_drafts_nothing():
    now = [0.0]
    slices = TimeSlices(lambda: now[0])
    slices.begin(drafts=False, prompts=False)
    now[0] = 60.0
    assert not slices.begin(drafts=True, prompts=True)
