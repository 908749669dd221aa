"""The search for the saturation rate, with servers that are a single number: their capacity."""

import pytest

from benchmarks.load.saturation import STEP, Point, breaks_at, next_rate, saturation_rate


def search(capacity: float, first: float, tries: int) -> list[Point]:
    """Points of a server that meets the objective for all requests up to its capacity, and for none above it."""
    points: list[Point] = []
    for _ in range(tries):
        rate = next_rate(points, first)
        points.append(Point(rate, 1.0 if rate <= capacity else 0.0))
    return points


@pytest.mark.parametrize("capacity", [0.05, 0.9, 1.0, 1.01, 7.3])
def test_the_search_closes_in_on_the_capacity(capacity: float) -> None:
    points = search(capacity, first=1.0, tries=12)
    low, high = saturation_rate(points), breaks_at(points)
    assert low is not None
    assert high is not None
    assert low <= capacity < high
    assert high / low < 1.1


def test_each_middle_halves_what_is_open() -> None:
    points = search(1.2, first=1.0, tries=4)
    assert [point.rate for point in points] == pytest.approx([1.0, STEP, STEP**0.5, STEP**0.25])
    assert (saturation_rate(points), breaks_at(points)) == pytest.approx((STEP**0.25, STEP**0.5))


def test_nine_of_ten_hold_and_fewer_do_not() -> None:
    assert saturation_rate([Point(1.0, 0.9), Point(2.0, 0.899)]) == 1.0
    assert saturation_rate([Point(1.0, 0.5)]) is None
    assert breaks_at([Point(1.0, 0.5), Point(0.5, 0.1)]) == 0.5
    assert breaks_at([Point(1.0, 1.0)]) is None


def test_noise_below_the_saturation_rate_does_not_move_it() -> None:
    points = [Point(1.0, 0.8), Point(2.0, 0.95), Point(4.0, 0.2)]
    assert (saturation_rate(points), breaks_at(points)) == (2.0, 4.0)
    assert next_rate(points, 1.0) == pytest.approx(8**0.5)
