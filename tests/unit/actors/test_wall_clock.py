"""A wall clock that was set back is recorded and noted, until it has caught up."""

import asyncio

import pytest

from actors import wall_clock
from actors.wall_clock import WallClock, behind_until, watch_clock
from tests.unit.actors.local_meter import LocalMeter

NOON = 43200.0


class Clock:
    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def store(kv_store):
    return kv_store


@pytest.mark.parametrize(
    ("shown", "behind"),
    [
        ([NOON + 1, NOON + 2], 0.0),
        ([NOON - 3600], 3600.0),
        ([NOON - 3600, NOON - 3500], 3500.0),
        ([NOON + 3600, NOON + 10], 3590.0),
        ([NOON - 3600, NOON + 1], 0.0),
    ],
)
def test_it_is_behind_the_latest_time_that_it_has_shown(clock, shown, behind):
    watched = WallClock(clock)
    for clock.now in shown:
        found = watched.behind_s()
    assert found == behind


async def watched(monkeypatch, clock, *shown):
    """What is recorded while the clock shows these times, one at each look."""
    meter, left = LocalMeter(), list(shown)

    async def sleep(_):
        if not left:
            raise asyncio.CancelledError
        clock.now = left.pop(0)

    monkeypatch.setattr(wall_clock.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await watch_clock(meter, WallClock(clock))
    return [value for value, _ in meter.recorded["skim_router_clock_behind_seconds"]]


async def test_the_latest_time_is_noted_and_told_until_the_clock_has_caught_up(monkeypatch, clock):
    assert await watched(monkeypatch, clock, NOON + 2, NOON - 3600) == [0.0, 0.0, 3602.0]
    assert behind_until(clock) == NOON + 2
    clock.now = NOON + 2
    assert behind_until(clock) is None


async def test_a_router_that_started_later_does_not_shorten_it(monkeypatch, clock):
    await watched(monkeypatch, clock, NOON - 3600)
    await watched(monkeypatch, clock, NOON - 3700)
    assert behind_until(clock) == NOON


async def test_a_clock_that_goes_on_or_is_slewed_is_not_told(monkeypatch, clock, store):
    await watched(monkeypatch, clock, NOON + 2, NOON + 1, NOON + 4)
    assert store == {}
    assert behind_until(clock) is None


async def test_the_watch_goes_on_while_the_head_of_ray_is_away(monkeypatch, clock):
    put = wall_clock._internal_kv_put
    answers = [OSError(), None]

    def sometimes(*given, **options):
        if isinstance(failed := answers.pop(0), Exception):
            raise failed
        put(*given, **options)

    monkeypatch.setattr(wall_clock, "_internal_kv_put", sometimes)
    assert await watched(monkeypatch, clock, NOON - 60, NOON - 58) == [0.0, 60.0, 58.0]
    assert answers == []
    assert behind_until(clock) == NOON


def test_outside_ray_nothing_is_noted(monkeypatch, clock):
    monkeypatch.setattr(wall_clock.ray, "is_initialized", lambda: False)
    assert behind_until(clock) is None
