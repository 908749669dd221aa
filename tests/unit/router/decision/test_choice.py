"""The choice of a mode: by rules, and by the estimates of both."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import choice
from router.decision.choice import MARGIN, STALE_S, Decision, Estimate, Reads, estimate, sooner
from router.decision.pool_time import ENOUGH, PoolTime
from router.options.request import PrefillOptions
from router.prompt.rendered import PromptSpans
from skim_common.models.costs import Read
from tests.unit.kv_transfer.layouts import layout_of


def pool(fixed, per_token, sizes=(100, 5000, 900)):
    time = PoolTime(lambda: 0.0)
    for size in sizes:
        time.measure(Read(size), fixed + per_token * size, 0.0)
    return time


def reads(dense, cold, read, kept):
    return Reads(Read(dense, cold - dense), Read(read, cold - read), Read(kept))


def test_nothing_is_estimated_before_both_pools_are_measured():
    empty, known = pool(10, 0.1, [100] * (ENOUGH - 1)), pool(10, 0.1)
    assert estimate(reads(1, 1, 1, 1), empty, known, 0.0) is None
    assert estimate(reads(1, 1, 1, 1), known, empty, 0.0) is None
    assert estimate(reads(1, 1, 1, 1), known, known, 0.0) is not None


def test_what_is_cached_counts_in_both_modes():
    speculator, target = pool(5, 0.1), pool(10, 1.0)
    cold = estimate(reads(10_000, 10_000, 10_000, 2000), speculator, target, 0.0)
    assert (cold.dense, cold.speculative) == (pytest.approx(10_010, rel=0.01), pytest.approx(3015, rel=0.01))
    warm = estimate(reads(300, 10_000, 10_000, 2000), speculator, target, 0.0)
    assert warm.dense == pytest.approx(310, rel=0.2)
    assert warm.cold == cold.dense
    record = estimate(reads(300, 10_000, 300, 100), speculator, target, 0.0)
    assert record.speculative == pytest.approx(145, rel=0.2)


def test_what_later_turns_lose_delays_others_too():
    """Behind a queue a dense prompt delays others by what it reads more, unless its later turns read as much more."""
    speculator, target = pool(5, 0.1), pool(10, 1.0)
    target.measure(Read(900), 910, 60_000.0)
    prompt = reads(3000, 10_000, 3000, 2500)
    alone, many = (estimate(prompt, speculator, target, 0.0, later) for later in (0.0, 1000.0))
    assert alone.burden > 0 > many.burden
    slower = replace(alone, speculative=alone.dense + 100)
    assert sooner(slower) == Decision(True, "load")
    assert not sooner(replace(slower, later=many.later, burden=many.burden)).speculative


ESTIMATE = Estimate(dense=100.0, speculative=80.0, cold=100.0)


@pytest.mark.parametrize(
    ("changes", "before", "decision"),
    [
        ({}, None, (True, "sooner")),
        ({"speculative": 91.0}, None, (False, "sooner")),
        ({"speculative": 89.0}, None, (True, "sooner")),
        ({"speculative": 120.0}, None, (False, "sooner")),
        ({"speculative": 120.0, "cold": 500.0}, None, (False, "cached")),
        ({"speculative": 95.0}, "dense", (False, "sooner")),
        ({"speculative": 95.0, "cold": 110.0}, "dense", (False, "cached")),
        ({"speculative": 89.0}, "dense", (True, "sooner")),
        ({"speculative": 105.0}, "speculative", (True, "sooner")),
        ({"speculative": 112.0}, "speculative", (False, "sooner")),
        ({"speculative": 200.0, "age_s": 2.1 * STALE_S}, "dense", (True, "probe")),
        ({"speculative": 200.0, "age_s": 1.9 * STALE_S}, None, (False, "sooner")),
    ],
)
def test_the_sooner_mode_is_chosen(changes, before, decision):
    assert sooner(replace(ESTIMATE, **changes), before) == Decision(*decision)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.sampled_from([None, "dense", "speculative"]))
def test_the_chosen_mode_is_never_slower_than_the_other_by_more_than_the_margin(dense, speculative, before):
    chosen = sooner(Estimate(dense, speculative, dense), before)
    other, own = (dense, speculative) if chosen.speculative else (speculative, dense)
    assert own * (1 - MARGIN) <= other * (1 + 1e-9)


def test_a_long_queue_does_not_make_prompts_dense():
    """The wait for the target is the same in both modes. A loaded target would get more work by dense prompts."""
    for waits in (0.0, 1e3, 1e5):
        estimate = Estimate(dense=waits + 500, speculative=waits + 150, cold=waits + 500, queue=waits)
        assert sooner(estimate).speculative
    near = Estimate(dense=1e5 + 500, speculative=1e5 + 470, cold=1e5 + 500, queue=1e5)
    assert not sooner(near).speculative


OPTIONS = PrefillOptions(min_prompt_tokens=100)
SIZE = 100


def spans(protected=50, **fields):
    return PromptSpans(layout_of([(0, protected)]), **fields)


decide = partial(choice.decide, size=SIZE, spans=spans())


def test_a_plain_request_is_speculative():
    assert decide(OPTIONS) == Decision(True, "requested")
    assert decide(OPTIONS, spans=None).speculative


@pytest.mark.parametrize(
    ("known", "options", "reason"),
    [
        ({}, {"enabled": False}, "disabled"),
        ({}, {"keep_rate": 1.0}, "keep-all"),
        ({}, {"keep_rate": 0.2, "coverage": 1.0}, "keep-all"),
        ({"size": 99}, {}, "short-prompt"),
        ({"untrusted": True}, {}, "start-probe"),
        ({"prompt_logprobs": True}, {}, "prompt-logprobs"),
        ({"echo": True}, {}, "echo"),
        ({"beam_search": True}, {}, "beam-search"),
        ({"spans": spans(SIZE)}, {}, "all-protected"),
        ({"has_text": True}, {"selector": "lexical"}, "no-task"),
        ({"has_text": True}, {"scoring": "heads"}, "no-task"),
        ({"has_text": True}, {"look_ahead": 0}, "no-task"),
    ],
)
def test_each_reason_for_a_dense_run(known, options, reason):
    decision = decide(OPTIONS.model_copy(update=options), **known)
    assert decision == Decision(False, reason)


def test_a_prompt_without_a_task_is_scored_by_the_look_ahead():
    assert decide(OPTIONS, has_text=True).speculative


def test_the_first_reason_is_told():
    everything = {"size": 1, "prompt_logprobs": True, "echo": True}
    assert decide(OPTIONS.model_copy(update={"enabled": False}), **everything).reason == "disabled"
    assert decide(OPTIONS, **everything).reason == "short-prompt"


@pytest.mark.parametrize(
    "options",
    [{"keep_rate": 0.999}, {"coverage": 0.999}, {"keep_rate": 1.0, "coverage": 0.5}, {"min_prompt_tokens": 1}],
)
def test_less_than_all_is_speculative(options):
    """With a coverage, the keep rate is not used."""
    assert decide(OPTIONS.model_copy(update=options)).speculative
