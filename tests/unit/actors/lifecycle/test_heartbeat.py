"""An engine that hangs is told from a busy one, and from a replica that was itself stopped."""

import asyncio
import gc

import pytest

from actors.lifecycle.watch import Heartbeat


class Engine:
    """Answers a call while it is not stuck, and after the step that it computes."""

    def __init__(self):
        self.now, self.calls = 0.0, 0
        self.free = asyncio.Event()
        self.free.set()

    async def sign_of_life(self):
        self.calls += 1
        await self.free.wait()


@pytest.fixture
async def engine():
    return Engine()


@pytest.fixture
def heartbeat(engine):
    heartbeat = Heartbeat(engine.sign_of_life, 120.0, lambda: engine.now)
    yield heartbeat
    heartbeat.stop()


async def looks(heartbeat, engine, seconds, *, every=1.0):
    """The times at which it hangs, from looks at equal distances."""
    found, ends = [], engine.now + seconds
    while engine.now < ends:
        engine.now += every
        if heartbeat.hangs():
            found.append(engine.now)
        for _ in range(3):
            await asyncio.sleep(0)
    return found


async def test_an_engine_that_answers_does_not_hang_and_is_asked_seldom(heartbeat, engine):
    assert await looks(heartbeat, engine, 12_000) == []
    assert 500 < engine.calls <= 1000


async def test_an_engine_without_an_answer_hangs_after_the_limit(heartbeat, engine):
    await looks(heartbeat, engine, 1000)
    engine.free.clear()
    calls, stopped = engine.calls, engine.now
    found = await looks(heartbeat, engine, 200)
    assert 100 <= found[0] - stopped <= 121
    assert engine.calls <= calls + 1, "one call at a time, however long it waits"


async def test_a_long_step_is_no_hang(heartbeat, engine):
    for _ in range(20):
        engine.free.clear()
        assert await looks(heartbeat, engine, 100) == []
        engine.free.set()
        assert await looks(heartbeat, engine, 15) == []


async def test_an_answer_that_waits_while_the_replica_is_stopped_is_read_first(heartbeat, engine):
    """A paused machine, or Ctrl-Z: the clock goes on, and nobody could look."""
    await looks(heartbeat, engine, 13)
    for _ in range(5):
        engine.now += 10_000
        assert not heartbeat.hangs()
        await looks(heartbeat, engine, 5)


async def test_an_error_is_an_answer(engine, caplog):
    async def fails():
        engine.calls += 1
        raise RuntimeError

    heartbeat = Heartbeat(fails, 120.0, lambda: engine.now)
    assert await looks(heartbeat, engine, 1000) == []
    assert engine.calls > 50
    gc.collect()  # asyncio tells of an error that nobody has read when its task goes
    assert not caplog.records


async def test_without_a_limit_nothing_is_asked(engine):
    heartbeat = Heartbeat(engine.sign_of_life, float("inf"), lambda: engine.now)
    engine.free.clear()
    assert await looks(heartbeat, engine, 10_000) == []
    assert engine.calls == 0
