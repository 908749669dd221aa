"""The acceptance by position: the paper's expectation, true rates found from simulated verifications, and priors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target_service.drafting.counts import FIRST_RATE, PositionAcceptance


def verified(
    rates: list[float], rounds: int, seed: int = 0, prior: PositionAcceptance | None = None
) -> PositionAcceptance:
    """Rates measured by simulated verifications of len(rates) drafts with these true rates."""
    rng, measured = np.random.default_rng(seed), PositionAcceptance(len(rates), prior)
    for _ in range(rounds):
        measured.observe(len(rates), int(np.cumprod(rng.random(len(rates)) < rates).sum()))
    return measured


@given(st.integers(1, 16))
def test_the_expected_tokens_are_the_papers(drafts: int) -> None:
    """Equation 1 of arXiv 2211.17192, with the first rate at all positions."""
    expected = (1 - FIRST_RATE ** (drafts + 1)) / (1 - FIRST_RATE)
    assert math.isclose(1 + PositionAcceptance(drafts).expected.sum(), expected, rel_tol=1e-9)


@settings(max_examples=20)
@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_true_rates_are_found(rates: list[float], seed: int) -> None:
    rng, measured, seen = np.random.default_rng(seed), PositionAcceptance(len(rates)), []
    for _ in range(2000):
        measured.observe(len(rates), int(np.cumprod(rng.random(len(rates)) < rates).sum()))
        seen.append(measured.rates)
        assert (measured.rates >= 0).all()
        assert (measured.rates <= 1).all()
    # The first position is verified in every round. The prior pulls the average a little towards FIRST_RATE.
    assert abs(np.mean(seen[500:], axis=0)[0] - rates[0]) < 0.15


@pytest.mark.parametrize("rates", [[0.35, 0.7, 0.1, 0.0], [0.9, 0.9, 0.2, 0.9]])
def test_positions_are_told_apart(rates: list[float]) -> None:
    found = np.mean([verified(rates, 400, seed).rates for seed in range(20)], axis=0)
    # The last positions are seldom reached, so the prior counts there.
    assert np.abs(found - rates)[:3] == pytest.approx(0, abs=0.13)
    assert np.argmin(found[:3]) == np.argmin(rates[:3])


def test_expected_never_increases() -> None:
    expected = verified([0.3, 0.9, 0.9, 0.9], 100).expected
    assert (np.diff(expected) <= 0).all()


def test_drafts_after_the_first_rejected_one_do_not_count() -> None:
    measured, before = PositionAcceptance(4), PositionAcceptance(4).rates
    measured.observe(4, 1)
    assert measured.rates[0] > before[0]
    assert measured.rates[1] < before[1]
    assert measured.rates[2:].tolist() == before[2:].tolist()


def test_a_request_starts_with_its_prior_and_leaves_it() -> None:
    everyone = verified([0.1, 0.1], 200)
    request = PositionAcceptance(2, everyone)
    assert request.rates.tolist() == everyone.rates.tolist()
    everyone.observe(2, 2)
    assert request.rates.tolist() == everyone.rates.tolist()
    for _ in range(100):
        request.observe(2, 2)
    assert request.rates[0] > 0.6
