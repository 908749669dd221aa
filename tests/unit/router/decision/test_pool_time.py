"""The time of a pool, fitted to its reads."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision.pool_time import CHANGE, ENOUGH, PER_SIZE, PoolTime
from skim_common.models.costs import LINEAR, Read, ReadCost

QUADRATIC = ReadCost(2000.0, pair=1.0)
"""The attention of 4,000 tokens takes as many operations as everything else."""


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def true_ms(read, fixed=20.0, linear=1e-4, attention=1e-4, cost=QUADRATIC):
    return fixed + linear * cost.linear_flops(read) + attention * cost.attention_flops(read)


def measured(reads, cost=QUADRATIC, noise=0.0, seed=1, **speeds):
    time, draw = PoolTime(Clock(), cost), random.Random(seed)
    for read in reads:
        time.measure(read, true_ms(read, cost=cost, **speeds) * (1 + noise * draw.uniform(-1, 1)), 0.0)
    return time


def whole(*sizes):
    return [Read(size) for size in sizes]


def test_nothing_is_estimated_before_enough_reads():
    assert measured(whole(*[100] * (ENOUGH - 1))).estimate(Read(100)) is None
    assert measured(whole(*[100] * ENOUGH)).estimate(Read(100)) == pytest.approx(true_ms(Read(100)), rel=0.01)


@given(st.floats(0, 1000), st.floats(1e-6, 1e-2), st.floats(0.2, 10), st.integers(1, 60_000), st.integers(0, 60_000))
def test_all_three_parts_are_found_again(fixed, linear, slower, tokens, cached):
    speeds = {"fixed": fixed, "linear": linear, "attention": slower * linear}
    time = measured(whole(500, 8000, 200, 30_000, 1500, 60_000) * 3, **speeds)
    read, shortest = Read(tokens, cached), true_ms(Read(200), **speeds)
    assert time.estimate(read) == pytest.approx(true_ms(read, **speeds), rel=0.1, abs=0.05 * shortest)


def test_short_reads_foretell_a_long_one_by_the_shape_of_the_model():
    """Negative control: a line through the same reads is far off."""
    reads, long = whole(900, 1400, 1100, 1900, 1000, 1600), Read(16_000)
    right = measured(reads, noise=0.05).estimate(long)
    assert right == pytest.approx(true_ms(long), rel=0.2)
    line = measured(reads, noise=0.05)
    line.cost = LINEAR
    assert line.estimate(long) < 0.6 * true_ms(long)


def test_one_long_read_shows_that_attention_is_slower_than_the_rest():
    reads = whole(900, 1400, 1100, 1900, 1000, 1600)
    slow = {"attention": 5e-4}
    assert measured(reads, **slow).estimate(Read(16_000)) > 0.5 * true_ms(Read(16_000), **slow)
    learned = measured([*reads, Read(9000)], **slow).estimate(Read(16_000))
    assert learned == pytest.approx(true_ms(Read(16_000), **slow), rel=0.1)


def test_many_short_reads_do_not_displace_a_long_one():
    slow = {"attention": 5e-4}
    time = measured(whole(12_000, 6000, *[1000 + i for i in range(60)]), **slow)
    assert time.estimate(Read(16_000)) == pytest.approx(true_ms(Read(16_000), **slow), rel=0.1)


def test_cached_tokens_are_attended_to():
    time = measured(whole(1000, 4000, 16_000))
    assert time.estimate(Read(500, 16_000)) == pytest.approx(true_ms(Read(500, 16_000)), rel=0.05)
    assert time.estimate(Read(500, 16_000)) > 3 * time.estimate(Read(500))


def test_reads_of_one_size_make_a_rate():
    time = measured(whole(1000, 1001, 999, 1002), cost=LINEAR, fixed=0.0, linear=0.5)
    assert time.estimate(Read(4000)) == pytest.approx(2000, rel=0.02)


def test_one_slow_read_moves_little_and_a_slow_first_one_is_forgotten():
    time = measured(whole(*[1000, 5000, 200] * 4))
    time.measure(Read(1000), 300 * true_ms(Read(1000)), 0.0)
    assert time.estimate(Read(1000)) == pytest.approx(true_ms(Read(1000)), rel=0.1)
    first = PoolTime(Clock(), QUADRATIC)
    first.measure(Read(1000), 300 * true_ms(Read(1000)), 0.0)
    for _ in range(ENOUGH - 1):
        first.measure(Read(1000), true_ms(Read(1000)), 0.0)
    assert first.estimate(Read(1000)) == pytest.approx(true_ms(Read(1000)), rel=0.1)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_pool_that_changes_its_speed_is_noticed(factor):
    time = measured(whole(*[1000, 5000] * 5))
    for _ in range(5 * PER_SIZE):
        time.measure(Read(1000), factor * true_ms(Read(1000)), 0.0)
    assert 1 / CHANGE < time.estimate(Read(1000)) / (factor * true_ms(Read(1000))) < CHANGE


@pytest.mark.parametrize("factor", [0.3, 5.0])
def test_reads_of_the_cache_at_another_speed_leave_a_cold_read_foretold(factor):
    """Prompts that are cached but for their last token say nothing of the time of a token."""
    cold, cached = Read(3000), [Read(1, 1200 + 100 * at) for at in range(2 * PER_SIZE)]
    time = measured([*whole(1200, 2000, 3000) * 2, *cached])
    for read in cached * 2:
        time.measure(read, factor * true_ms(read), 0.0)
        assert 1 / CHANGE < time.estimate(cold) / true_ms(cold) < CHANGE
    assert 1 / CHANGE < time.estimate(cached[0]) / (factor * true_ms(cached[0])) < CHANGE


def test_a_wait_in_the_queue_counts_and_fades():
    clock = Clock()
    busy = PoolTime(clock)
    busy.measure(Read(100), 10, 5000.0)
    assert busy.queue_ms == 5000
    clock.now = 100
    assert busy.queue_ms < 1


@given(st.integers(0, 20), st.floats(0, 0.3))
def test_noise_leaves_the_estimate_near(seed, noise):
    sizes = random.Random(seed).choices(range(100, 20_000), k=60)
    time = measured(whole(*sizes), noise=noise, seed=seed)
    assert time.estimate(Read(8000)) == pytest.approx(true_ms(Read(8000)), rel=0.05 + noise)
