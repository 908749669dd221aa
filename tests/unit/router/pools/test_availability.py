"""When a pool counts as down, and what that does to calls that wait for it."""

import asyncio

import pytest

from router.options.errors import HttpError
from router.pools.availability import PoolDownError, PoolStates, Replicas, watch_pools
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import until

EMPTY, SHORT, ASLEEP = Replicas(2, 0), Replicas(2, 1), Replicas(0, 0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def states(clock):
    return PoolStates(30.0, clock)


async def test_a_pool_is_down_once_it_was_empty_for_the_time(states, clock):
    states.note({"target": EMPTY, "speculator": SHORT, "prefill": ASLEEP})
    states.check("target")
    clock.now = 30.0
    states.note({"target": EMPTY, "speculator": SHORT, "prefill": ASLEEP})
    with pytest.raises(PoolDownError, match="the target pool is down; try again in a moment"):
        states.check("target")
    states.check("speculator")
    states.check("prefill")
    states.check("unknown")


async def test_replicas_are_counted_per_router(states):
    assert states.per_router("target") == 1
    states.note({"target": Replicas(4, 3), "router": Replicas(2, 2), "speculator": EMPTY})
    assert (states.per_router("target"), states.per_router("speculator")) == (1.5, 0.5)


async def test_a_pool_that_wakes_is_waited_for_until_it_has_run(states, clock):
    for now, replicas in ((0.0, EMPTY), (29.0, ASLEEP), (31.0, EMPTY), (99.0, EMPTY), (100.0, SHORT), (101.0, EMPTY)):
        clock.now = now
        states.note({"target": replicas})
        states.check("target")
    clock.now = 131.0
    assert states.is_down("target")


async def test_a_replica_ends_it_and_the_time_begins_anew(states, clock):
    for now, replicas in ((0.0, EMPTY), (29.0, SHORT), (31.0, EMPTY), (60.0, EMPTY)):
        clock.now = now
        states.note({"target": replicas})
        states.check("target")
    clock.now = 61.0
    assert states.is_down("target")


async def test_an_answer_counts_at_once_and_the_next_report_begins_the_time_anew(states, clock):
    for now in (0.0, 30.0):
        clock.now = now
        states.note({"target": EMPTY})
    assert states.is_down("target")
    states.answered("target")
    states.check("target")
    states.note({"target": EMPTY})
    states.check("target")
    clock.now = 60.0
    assert states.is_down("target")


async def test_a_wait_ends_when_its_pool_goes_down_and_no_other(states, clock):
    async def wait(pool):
        async with states.while_up(pool):
            await asyncio.Event().wait()

    waits = {pool: asyncio.create_task(wait(pool)) for pool in ("speculator", "target")}
    await asyncio.sleep(0)
    states.note({"speculator": EMPTY, "target": SHORT})
    clock.now = 30.0
    await asyncio.sleep(0.01)
    assert not waits["speculator"].done(), "only a report ends a wait"
    states.note({"speculator": EMPTY, "target": SHORT})
    with pytest.raises(PoolDownError):
        await waits["speculator"]
    assert not waits["target"].done()
    waits["target"].cancel()
    with pytest.raises(PoolDownError):
        await wait("speculator")


async def test_a_timeout_of_the_callers_own_is_no_pool_that_is_down(states):
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01), states.while_up("speculator"):
            await asyncio.Event().wait()
    assert not isinstance(caught.value, PoolDownError)


async def test_a_wait_that_ends_slowly_is_ended_once(states, clock):
    """A time-out that has expired cannot be changed: the watch of the pools would die of it."""
    may_end, ending = asyncio.Event(), asyncio.Event()

    async def slow():
        async with states.while_up("target"):
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await may_end.wait()

    states.note({"target": EMPTY})
    call = asyncio.create_task(slow())
    await asyncio.sleep(0)
    clock.now = 30.0
    states.note({"target": EMPTY})
    await ending.wait()
    states.note({"target": EMPTY})
    may_end.set()
    with pytest.raises(PoolDownError):
        await call


async def test_without_the_controller_the_last_state_counts(monkeypatch, clock, states):
    monkeypatch.setattr("router.pools.availability.PERIOD_S", 0.0)
    asked, meter = 0, LocalMeter()

    async def ask():
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RuntimeError("the controller is away")
        return {"target": EMPTY}

    async def probes():
        if asked > 1:
            raise RuntimeError("Ray's head is away")
        return {"target": "a reason"}

    watch = asyncio.create_task(watch_pools(ask, probes, states, meter))
    await until(lambda: asked > 3)
    assert not states.is_down("target")
    assert states.failed_probes == {"target": "a reason"}
    clock.now = 30.0
    assert states.is_down("target")
    watch.cancel()
    tags = [{"pool": "target", "state": state} for state in ("configured", "running")]
    assert meter.recorded["skim_router_pool_replicas"][:2] == [(2, tags[0]), (0, tags[1])]


@pytest.mark.parametrize(("down_s", "retry_after_s"), [(30.0, 30), (41.2, 42), (3600.0, 60)])
async def test_a_client_is_told_to_come_back_after_as_long_as_the_pool_was_down(states, clock, down_s, retry_after_s):
    states.note({"target": EMPTY})
    clock.now = down_s
    with pytest.raises(PoolDownError) as caught:
        states.check("target")
    assert HttpError.of(caught.value).headers == {"retry-after": str(retry_after_s)}
