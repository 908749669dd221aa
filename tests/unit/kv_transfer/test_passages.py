"""What is found at a unit is spread over the units around it, by their distance in tokens."""

import numpy as np
import pytest

from kv_transfer.passages import LONGEST_REACH, REACH, reach_of, spread


def one_by_one(values, lengths, gaps):
    middles = np.cumsum(lengths + gaps) - lengths / 2
    shares = np.exp(-np.abs(middles[:, None] - middles) / reach_of(lengths.sum()))
    return shares @ values


@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("units", [1, 2, 7, 100, 250])
def test_it_is_the_sum_over_all_pairs(units, columns):
    rng = np.random.default_rng(units)
    lengths, gaps = rng.integers(1, 90, units), rng.choice([0, 30, 60], units)
    gaps[0] = 0
    values = rng.random((units, columns) if columns else units)
    np.testing.assert_allclose(spread(values, lengths, gaps), one_by_one(values, lengths, gaps), rtol=1e-3)


def test_nothing_crosses_a_large_gap():
    found = spread(np.array([1.0, 0, 0, 0]), np.full(4, 10), np.array([0, 0, 1 << 20, 0]))
    assert found[1] == pytest.approx(np.exp(-10 / REACH))
    assert found[2:].tolist() == [0, 0]


def test_the_reach_grows_with_the_text_between_bounds():
    assert [reach_of(tokens) for tokens in (0, 3000, 5000, 12_500, 100_000)] == [REACH, REACH, 100, 250, LONGEST_REACH]


def test_evidence_of_a_long_text_reaches_further():
    """Control: a short text of the same units."""
    for units, share in ((50, np.exp(-200 / REACH)), (500, np.exp(-200 / 200))):
        values = np.zeros(units)
        values[0] = 1.0
        found = spread(values, np.full(units, 20), np.zeros(units, int))
        assert found[10] == pytest.approx(share, rel=1e-3)


def test_between_two_units_the_shorter_reach_counts():
    found = spread(np.array([1.0, 0, 0, 0]), np.full(4, 10), np.zeros(4, int), np.array([50.0, 50, 5, 50]))
    assert found[1:] == pytest.approx(np.exp([-10 / 50, -10 / 50 - 10 / 5, -10 / 50 - 20 / 5]))
