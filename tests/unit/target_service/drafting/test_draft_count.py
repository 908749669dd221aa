"""The draft count, compared with the paper's formula and with simulated verification, and its limits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from target_service.drafting.draft_count import (
    AcceptanceAverage,
    DraftCount,
    StepCosts,
    best_draft_count,
    expected_tokens,
)

RATES = st.floats(0, 1)
COSTS = st.floats(0, 10)


@given(st.floats(0, 0.999), st.integers(0, 16))
def test_expected_tokens_are_the_papers(acceptance: float, drafts: int) -> None:
    """Equation 1 of arXiv 2211.17192."""
    written_out = (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
    assert math.isclose(expected_tokens(acceptance, drafts), written_out, rel_tol=1e-9)


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.3, 2), (0.8, 4), (0.95, 8)])
def test_expected_tokens_are_what_verification_yields(acceptance: float, drafts: int) -> None:
    held = np.random.default_rng(0).random((100_000, drafts)) < acceptance
    yielded = 1 + np.cumprod(held, axis=1).sum(axis=1).mean()
    assert abs(yielded - expected_tokens(acceptance, drafts)) < 0.02


@given(RATES, COSTS, st.integers(0, 16))
def test_no_other_count_is_faster(acceptance: float, cost: float, most: int) -> None:
    rates = [expected_tokens(acceptance, k) / (1 + k * cost) for k in range(most + 1)]
    best = best_draft_count(acceptance, cost, most)
    assert 0 <= best <= most
    assert rates[best] == max(rates)


@given(RATES, RATES, COSTS, COSTS, st.integers(0, 16))
def test_more_acceptance_or_less_cost_never_means_fewer_drafts(
    a: float, b: float, c: float, d: float, most: int
) -> None:
    # Ties within rounding may go either way.
    assume(abs(a - b) > 1e-6 and abs(c - d) > 1e-6)
    assert best_draft_count(min(a, b), c, most) <= best_draft_count(max(a, b), c, most)
    assert best_draft_count(a, max(c, d), most) <= best_draft_count(a, min(c, d), most)


@given(RATES, st.integers(0, 16))
def test_a_draft_dearer_than_its_acceptance_does_not_pay(acceptance: float, most: int) -> None:
    assert best_draft_count(acceptance, acceptance + 1e-6, most) == 0


def test_known_counts() -> None:
    assert best_draft_count(1.0, 0.1, 8) == 8
    assert best_draft_count(0.0, 0.0, 8) == 0
    assert best_draft_count(0.8, 0.1, 16) == 6
    assert best_draft_count(0.5, 0.1, 16) == 2


@settings(max_examples=30)
@given(st.floats(0.05, 0.95), st.integers(1, 8), st.integers(0, 2**32))
def test_acceptance_finds_the_true_rate(rate: float, drafts: int, seed: int) -> None:
    rng, acceptance, seen = np.random.default_rng(seed), AcceptanceAverage(), []
    for _ in range(1500):
        acceptance.observe(drafts, int(np.cumprod(rng.random(drafts) < rate).sum()))
        seen.append(acceptance.rate)
        assert 0 <= acceptance.rate <= 1
    # Single drafts are averaged, so stopping at the first rejection adds no bias.
    assert abs(np.mean(seen[100:]) - rate) < 0.08


@given(st.floats(1e-4, 1e-1), st.floats(0, 1e-3), st.lists(st.integers(1, 200), min_size=60, max_size=80))
def test_costs_find_the_line_through_the_steps(base: float, slope: float, sizes: list[int]) -> None:
    assume(len(set(sizes[-20:])) > 5)
    costs = StepCosts()
    for tokens in sizes:
        costs.observe_step(tokens, base + slope * tokens)
    costs.observe_exchange(4, 0.02)
    rows = sizes[-1]
    true = (0.005 + slope * rows) / (base + slope * rows)
    assert math.isclose(costs.per_draft(rows), true, rel_tol=1e-3, abs_tol=1e-6)


def test_costs_before_anything_was_measured() -> None:
    costs = StepCosts()
    assert costs.per_draft(8) == 0
    costs.observe_step(8, 0.01)
    assert costs.per_draft(8) == 0


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 10)), min_size=1))
def test_costs_are_never_negative(steps: list[tuple[int, float]]) -> None:
    costs = StepCosts()
    costs.observe_exchange(1, 0.0)
    for tokens, seconds in steps:
        costs.observe_step(tokens, seconds)
    assert costs.slope >= 0
    assert costs.per_draft(1) >= 0
    assert math.isfinite(costs.per_draft(1))


def test_a_full_batch_makes_drafts_dear() -> None:
    """If a step's time is proportional to its tokens, a draft costs as much as a token."""
    costs = StepCosts()
    for tokens in (64, 128, 256) * 20:
        costs.observe_step(tokens, 1e-4 * tokens)
    costs.observe_exchange(4, 1e-4)
    assert DraftCount(4, acceptance=AcceptanceAverage(0.9)).next(costs.per_draft(64)) == 0


def test_a_count_that_fell_to_zero_probes_and_comes_back() -> None:
    count = DraftCount(4, acceptance=AcceptanceAverage(0.0))
    cost, asked = 0.2, []
    for _ in range(60):
        asked.append(count.next(cost))
        if asked[-1]:
            count.observe(asked[-1], 0)
    # Probes come after 8, 16, 32 steps: less often while they are rejected.
    assert [i for i, k in enumerate(asked) if k] == [7, 23, 55]
    for _ in range(2000):
        drafts = count.next(cost)
        if drafts:
            count.observe(drafts, drafts)
    assert count.next(cost) == 4


def test_without_adapting_it_is_always_the_most() -> None:
    count = DraftCount(3, adaptive=False, acceptance=AcceptanceAverage(0.0))
    assert [count.next(9.0) for _ in range(5)] == [3] * 5


@given(RATES, st.lists(COSTS, max_size=50), st.integers(0, 16))
def test_a_count_keeps_its_bounds(rate: float, costs: list[float], most: int) -> None:
    count = DraftCount(most, acceptance=AcceptanceAverage(rate))
    assert all(0 <= count.next(cost) <= most for cost in costs)
