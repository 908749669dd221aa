"""Intervals that hold the true mean about as often as they claim."""

import numpy as np
import pytest

from evals.results.bootstrap import of_families, of_mean


def test_the_mean_of_families_counts_each_family_once():
    mean, low, high = of_families({"one": [1.0] * 90, "other": [0.0] * 10})
    assert mean == low == high == 0.5


def test_a_certain_difference_has_no_zero_inside():
    _, low, high = of_mean([0.0] * 10 + [-1.0] * 20)
    assert -0.9 < low < high < -0.4


def test_the_interval_holds_the_true_mean_in_most_runs():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        _, low, high = of_mean(rng.choice([-1.0, 0.0, 1.0], 60, p=[0.2, 0.7, 0.1]).tolist())
        held += low <= -0.1 <= high
    assert 85 <= held <= 100


def test_few_samples_give_a_wide_interval():
    rng = np.random.default_rng(2)
    values = rng.random(400).tolist()
    widths = [high - low for _, low, high in (of_mean(values[:10]), of_mean(values))]
    assert widths[0] > 3 * widths[1]


@pytest.mark.parametrize("values", [[0.5], [0.0, 0.0]])
def test_equal_values_give_a_point(values):
    assert of_mean(values) == (values[0],) * 3
