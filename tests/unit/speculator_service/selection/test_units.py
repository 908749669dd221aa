import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from speculator_service.selection.units import Units, unit_means
from tests.unit.kv_transfer.layouts import layout_of

TEXT = np.array([0, 5, 7, 40], np.int32)


@pytest.mark.parametrize(
    ("starts", "means"),
    [
        ([0, 1, 2, 3, 4], [1, 2, 3, 4, 6]),
        ([0, 2, 4], [1.5, 3.5, 6]),
        ([0, 4], [2.5, 6]),
        ([0], [3.2]),
        ([0, 1, 4], [1, 3, 6]),
    ],
)
def test_the_mean_of_each_unit(starts, means):
    """The last chunk may be shorter; its mean counts its own tokens only."""
    assert unit_means(np.array([1, 2, 3, 4, 6], np.float32), np.array(starts)).tolist() == pytest.approx(means)


@pytest.mark.parametrize(
    ("granularity", "units", "starts", "sizes"),
    [
        ("text", TEXT, [0, 5, 7, 40], [5, 2, 33, 10]),
        ("text", [], [0, 32], [32, 32]),
        ("chunk", TEXT, [0, 32], [32, 32]),
        ("token", TEXT, list(range(50)), [1] * 50),
    ],
)
def test_what_a_unit_is(granularity, units, starts, sizes):
    """A shorter last chunk counts as a whole one; a unit of text counts its tokens."""
    found = Units.of(50, SelectionOptions(granularity=granularity), layout_of(units=units))
    assert (found.starts.tolist(), found.sizes.tolist()) == (starts, sizes)
    assert found.lengths.sum() == 50
    assert found.having(np.arange(50) == 40).nonzero()[0].tolist() == [max(u for u, s in enumerate(starts) if s <= 40)]
    assert found.each_token(found.starts).tolist() == [max(s for s in starts if s <= place) for place in range(50)]
