"""Estimates of a pool's time, and the choice of the sooner mode."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision.cost_model import ENOUGH, MARGIN, STALE_S, Estimate, PoolTime, Tokens, estimate, sooner
from router.decision.rules import Decision


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def pool(fixed, per_token, sizes, clock=None, noise=0.0, seed=1):
    time, draw = PoolTime(clock or Clock()), random.Random(seed)
    for size in sizes:
        time.measure(size, (fixed + per_token * size) * (1 + noise * draw.uniform(-1, 1)), 0.0)
    return time


def test_nothing_is_estimated_before_enough_measurements():
    empty, known = pool(10, 0.1, [100] * (ENOUGH - 1)), pool(10, 0.1, [100] * ENOUGH)
    assert empty.estimate(100) is None
    assert known.estimate(100) == pytest.approx(20)
    assert estimate(Tokens(1, 1, 1, 1), empty, known, 0.0) is None
    assert estimate(Tokens(1, 1, 1, 1), known, empty, 0.0) is None


@given(st.floats(0, 1000), st.floats(0.001, 10), st.integers(1, 100_000))
def test_a_line_is_found_again(fixed, per_token, tokens):
    time = pool(fixed, per_token, [500, 8000, 200, 30_000, 1500, 60_000] * 3)
    assert time.estimate(tokens) == pytest.approx(fixed + per_token * tokens, rel=0.1, abs=5 + 0.05 * fixed)


def test_measurements_of_one_size_make_a_rate():
    time = pool(0, 0.5, [1000, 1001, 999, 1002])
    assert time.estimate(4000) == pytest.approx(2000, rel=0.02)
    assert time.estimate(0) >= 0


def test_one_slow_measurement_moves_little_and_a_slow_first_one_is_forgotten():
    time = pool(20, 0.1, [1000, 5000, 200] * 4)
    time.measure(1000, 60_000, 0.0)
    assert time.estimate(1000) < 2 * 120
    first = pool(20, 0.1, [])
    first.measure(1000, 60_000, 0.0)
    for _ in range(ENOUGH):
        first.measure(1000, 120, 0.0)
    assert first.estimate(1000) == pytest.approx(120, rel=0.1)


def test_a_pool_that_becomes_slower_is_noticed():
    time = pool(0, 0.1, [1000, 5000] * 5)
    for _ in range(20):
        time.measure(1000, 800, 0.0)
    assert time.estimate(1000) == pytest.approx(800, rel=0.1)


def test_a_wait_in_the_queue_counts_and_fades():
    clock = Clock()
    busy = PoolTime(clock)
    busy.measure(100, 10, 5000.0)
    assert busy.queue_ms == 5000
    clock.now = 100
    assert busy.queue_ms < 1


@given(st.integers(0, 20), st.floats(0, 0.3))
def test_noise_leaves_the_estimate_near(seed, noise):
    sizes = random.Random(seed).choices(range(100, 20_000), k=60)
    time = pool(30, 0.2, sizes, noise=noise, seed=seed)
    assert time.estimate(8000) == pytest.approx(1630, rel=0.05 + noise)


def test_what_is_cached_counts_in_both_modes():
    speculator, target = pool(5, 0.1, [100, 5000, 900]), pool(10, 1.0, [100, 5000, 900])
    cold = estimate(Tokens(10_000, 10_000, 10_000, 2000), speculator, target, 0.0)
    assert (cold.dense, cold.speculative) == (pytest.approx(10_010, rel=0.01), pytest.approx(3015, rel=0.01))
    warm = estimate(Tokens(300, 10_000, 10_000, 2000), speculator, target, 0.0)
    assert warm.dense == pytest.approx(310, rel=0.2)
    assert warm.cold == cold.dense
    record = estimate(Tokens(300, 10_000, 300, 100), speculator, target, 0.0)
    assert record.speculative == pytest.approx(145, rel=0.2)


def test_what_later_turns_lose_delays_others_too():
    """Behind a queue a dense prompt delays others by what it reads more, unless its later turns read as much more."""
    speculator, target = pool(5, 0.1, [100, 5000, 900]), pool(10, 1.0, [100, 5000, 900])
    target.measure(900, 910, 60_000.0)
    tokens = Tokens(3000, 10_000, 3000, 2500)
    alone, many = (estimate(tokens, speculator, target, 0.0, later) for later in (0.0, 1000.0))
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
