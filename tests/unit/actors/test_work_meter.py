"""The cost of requests to a replica, with the test's own clock."""

from contextlib import ExitStack, suppress

import pytest

from actors.work_meter import WorkMeter


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def test_one_after_the_other():
    clock = Clock()
    meter = WorkMeter(clock=clock)
    assert meter.stats() == {"tokens_in_flight": 0, "busy": 0}  # no cost is known yet
    for _ in range(3):
        with meter.request(1000):
            clock.wait(2)
            assert meter.stats()["tokens_in_flight"] == 1000
        clock.wait(2)
    stats = meter.stats()
    assert stats["tokens_in_flight"] == 0
    assert (stats["seconds_per_request"], stats["seconds_per_token"]) == pytest.approx((2.0, 0.002))


def test_the_busy_share_is_that_since_the_last_reading():
    clock = Clock()
    meter = WorkMeter(clock=clock)
    with meter.request(1):
        clock.wait(1)
    clock.wait(3)
    assert meter.stats()["busy"] == pytest.approx(0.25)
    clock.wait(5)
    assert meter.stats()["busy"] == 0


def both_for(seconds, batch):
    """Run two requests at once. Returns the meter's numbers."""
    clock = Clock()
    meter = WorkMeter(batch, clock)
    with meter.request(100), meter.request(300):
        clock.wait(seconds)
    return meter.stats()


def test_those_that_run_at_once_share_the_time():
    """Two requests that run at once take twice as long but cost no more: their costs add up to the busy time."""
    stats = both_for(4, batch=1)
    assert stats["seconds_per_request"] == pytest.approx(2.0)
    assert stats["seconds_per_token"] == pytest.approx(0.01)
    assert stats["busy"] == pytest.approx(1.0)


def test_below_its_batch_a_replica_is_not_full():
    stats = both_for(4, batch=8)
    assert stats["seconds_per_request"] == pytest.approx(0.5)
    assert stats["busy"] == pytest.approx(2 / 8)


def test_a_failed_request_ends_and_does_not_change_the_costs():
    clock = Clock()
    meter = WorkMeter(clock=clock)
    with ExitStack() as stack:
        stack.enter_context(suppress(ValueError))
        stack.enter_context(meter.request(100))
        clock.wait(1)
        raise ValueError
    assert meter.stats() == {"tokens_in_flight": 0, "busy": 1}


def test_old_costs_are_forgotten():
    clock = Clock()
    meter = WorkMeter(clock=clock)
    for seconds in [10] * 20 + [1] * 40:
        with meter.request(1):
            clock.wait(seconds)
    assert meter.stats()["seconds_per_request"] == pytest.approx(1, abs=0.2)
