"""The interval of a share."""

import pytest

from benchmarks.report.statistics import wilson


@pytest.mark.parametrize(
    ("share", "n", "interval"), [(1, 10, (0.722, 1)), (0.5, 10, (0.237, 0.763)), (0, 4, (0, 0.49))]
)
def test_intervals_are_wilsons(share, n, interval):
    assert wilson(share, n) == pytest.approx(interval, abs=1e-3)
