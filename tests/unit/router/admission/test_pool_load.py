"""The predicted wait in a pool, against simulated pools."""

import itertools
import random

import pytest

from router.admission import pool_load
from router.admission.pool_load import ENOUGH, PoolLoad


class Pool:
    """`servers` that compute one prompt at a time, in the order of arrival; `share` of the pool's work is another
    router's. now: seconds."""

    def __init__(self, servers, share=1):
        self.servers, self.share, self.now = [0.0] * servers, share, 0.0
        self.load = PoolLoad(lambda: self.now)
        self.running, self.numbers = [], itertools.count()

    def send(self, work_ms):
        """Send one prompt, and as much of other routers. Returns the wait expected for it and the real one, in ms."""
        self.settle(self.now)
        found, expected = self.load.ahead_ms, self.load.wait_ms(self.load.ahead_ms)
        for _ in range(self.share):
            server = min(range(len(self.servers)), key=self.servers.__getitem__)
            begin = max(self.now, self.servers[server])
            self.servers[server] = begin + work_ms / 1e3
        self.load.enter(number := next(self.numbers), work_ms)
        self.running.append((begin + work_ms / 1e3, found, 1e3 * (begin - self.now), number))
        return expected, 1e3 * (begin - self.now)

    def settle(self, until):
        for one in sorted(self.running):
            if one[0] <= until:
                self.running.remove(one)
                self.load.learn(one[1], one[2])
                self.load.leave(one[3])


@pytest.mark.parametrize(("servers", "share"), [(1, 1), (4, 1), (1, 3), (4, 2)])
def test_waits_are_predicted_without_knowing_replicas_or_other_routers(servers, share):
    pool, draw, errors = Pool(servers, share), random.Random(1), []
    for i in range(600):
        pool.now += draw.expovariate(servers / share / 0.2 * 1.3)  # more than it can take
        if pool.load.requests > 20 * servers:
            pool.now = sorted(pool.running)[len(pool.running) // 2][0]
        expected, real = pool.send(draw.uniform(50, 350))
        if i > 50 and real > 500:
            errors.append(expected / real)
    assert len(errors) > 100
    assert sorted(errors)[len(errors) // 2] == pytest.approx(1, abs=0.2)
    assert sorted(errors)[len(errors) // 10] > 0.6


def test_nothing_is_expected_before_it_was_measured():
    load = PoolLoad(lambda: 0.0)
    for _ in range(ENOUGH - 1):
        load.learn(100, 100)
    assert load.wait_ms(1000) == 0
    load.learn(100, 100)
    assert load.wait_ms(1000) == pytest.approx(1000)


def test_a_pool_that_never_makes_wait_predicts_no_wait():
    load = PoolLoad(lambda: 0.0)
    for _ in range(20):
        load.learn(500, 0)
    assert load.wait_ms(5000) == 0


def test_a_wait_for_the_work_of_others_is_forgotten():
    now = 0.0
    load = PoolLoad(lambda: now)
    for _ in range(20):
        load.learn(100, 100)
    load.learn(0, 5000)
    assert load.wait_ms(0) == pytest.approx(5000)
    now = 60.0
    assert load.wait_ms(0) < 50
    assert load.wait_ms(100) == pytest.approx(100, abs=50)


def test_what_leaves_is_no_longer_ahead():
    load = PoolLoad(lambda: 0.0)
    load.enter("a", 0.1)
    load.enter("b", 0.2)
    for _ in range(2):
        load.leave("a")
        assert (load.requests, load.ahead_ms) == (1, pytest.approx(0.2))
    load.leave("b")
    assert (load.requests, load.ahead_ms) == (0, 0.0)


@pytest.mark.parametrize("room", [0, 2])
def test_a_pool_has_room_until_it_has_so_many_requests(room):
    load = PoolLoad(lambda: 0.0, room)
    for number in range(room):
        assert load.has_headroom
        load.enter(number, 100.0)
    assert not load.has_headroom


def test_an_engine_that_was_away_for_long_does_not_make_the_pace_absurd():
    """Five prompts of 200 ms wait for half a minute. A minute later, eight at once are not expected to wait as long."""
    now = [0.0]
    load = PoolLoad(lambda: now[0])
    for ahead in range(1, 6):
        load.learn(200.0 * ahead, 30_000.0)
    now[0] += 60
    assert load.wait_ms(8 * 200.0) < 20_000
    for ahead in range(1, 6):  # and the wait of that time is told to those that come at once
        load.learn(200.0 * ahead, 30_000.0)
    assert load.wait_ms(200.0) > 20_000


@pytest.mark.parametrize(("forget_s", "forgotten"), [(pool_load.FORGET_S, True), (1e9, False)])
def test_after_a_burst_the_prediction_returns_within_seconds(monkeypatch, forget_s, forgotten):
    """A machine that is busy with other work makes ten prompts wait nine times as long as their own work takes. The
    second case is the negative control.
    """
    monkeypatch.setattr(pool_load, "FORGET_S", forget_s)
    now = [0.0]
    load = PoolLoad(lambda: now[0])
    for ahead in range(1, 11):
        load.learn(2_000.0 * ahead, 18_000.0 * ahead)
    assert load.wait_ms(20_000.0) == pytest.approx(180_000, rel=0.01), "while it lasts, it is foretold"
    now[0] += 30
    assert (load.wait_ms(2_000.0) < 3_000) == forgotten, "before anything else was measured"
    load.learn(2_000.0, 2_000.0)
    assert (load.wait_ms(20_000.0) < 30_000) == forgotten, "one pair is enough, although those of the burst were longer"


def test_the_rate_of_many_replicas_is_not_forgotten():
    now = [0.0]
    load = PoolLoad(lambda: now[0])
    for _ in range(ENOUGH):
        load.learn(1_000.0, 250.0)
    now[0] += 3_600
    assert load.wait_ms(4_000.0) == pytest.approx(1_000)
