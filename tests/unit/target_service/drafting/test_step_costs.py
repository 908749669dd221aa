"""The measured costs: lines through simulated values, with noise and interruptions."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from target_service.drafting.counts import DraftCounts, Line

SECONDS = st.floats(0, 10)


@given(st.floats(1e-3, 1.0), st.floats(0, 1.0), st.integers(0, 2**32))
def test_a_line_is_found(base: float, slope: float, seed: int) -> None:
    rng, line = np.random.default_rng(seed), Line()
    for x in rng.integers(0, 5, 1500):
        line.observe(x, base + slope * base * x)
    assert math.isclose(line.base, base, rel_tol=0.02)
    assert math.isclose(line.slope, slope * base, rel_tol=0.02, abs_tol=0.01 * base)


def test_a_slope_is_not_forgotten_without_drafts() -> None:
    line = Line()
    for x in (0, 4, 2) * 100:
        line.observe(x, 1.0 + 0.1 * x)
    slope = line.slope
    for _ in range(1000):
        line.observe(0, 2.0)
    assert line.slope == slope
    assert math.isclose(line.base, 2.0, rel_tol=1e-3)


def test_an_interrupted_step_counts_little() -> None:
    costs = DraftCounts(4)
    for _ in range(100):
        costs.stepped(0, 4, 1.0)
    costs.stepped(0, 4, 1000.0)
    assert 1.0 < costs.step.base < 1.2


def test_a_rare_slow_exchange_counts_in_full() -> None:
    costs, seen = DraftCounts(4), []
    for index in range(1000):
        costs.exchange.observe(4, 1.0 if index % 5 == 0 else 0.01)
        seen.append(costs.exchange.at(4))
    assert math.isclose(np.mean(seen[200:]), 0.208, rel_tol=0.15)


@given(st.lists(st.tuples(st.integers(0, 16), SECONDS), min_size=1))
def test_costs_are_never_negative(values: list[tuple[int, float]]) -> None:
    line = Line()
    for x, value in values:
        line.observe(x, value)
        assert line.base >= 0
        assert line.slope >= 0
        assert math.isfinite(line.at(16))


def test_costs_before_anything_was_measured() -> None:
    costs = DraftCounts(4)
    assert costs.costs() == {"cost_per_exchange": 0.0, "cost_per_draft": 0.0}
    costs.step.observe(0, 0.01)
    assert costs.costs() == {"cost_per_exchange": 0.0, "cost_per_draft": 0.0}
    costs.exchange.observe(4, 0.02)
    assert costs.costs()["cost_per_exchange"] > 0


def test_costs_are_given_in_plain_steps() -> None:
    costs = DraftCounts(4)
    costs.step, costs.exchange = Line(0.01, 0.001, 9, 9), Line(0.02, 0.004, 9, 9)
    assert costs.costs() == {"cost_per_exchange": 2.0, "cost_per_draft": 0.5}
    assert math.isclose(costs._seconds(np.array([3, 3, 2]), rows=4), 0.01 + 2 * 0.001 + 0.02 + 3 * 0.004)
    assert costs._seconds(np.array([0]), rows=4) == 0.01
