"""Virtual time: waits end in their order and cost nothing, and a simulation that waits for nothing fails."""

import asyncio
import time

import pytest

from benchmarks.harness.virtual_time import run


def test_hours_pass_at_once_and_waits_end_in_order():
    ended = []

    async def wait(seconds):
        await asyncio.sleep(seconds)
        ended.append((seconds, asyncio.get_running_loop().time(), time.perf_counter(), time.monotonic()))

    async def simulation():
        await asyncio.gather(*(wait(seconds) for seconds in (7200, 3600, 5400)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.sleep(1000)
        return time.perf_counter()

    assert run(simulation()) == pytest.approx(7300)
    assert [seconds for seconds, *_ in ended] == [3600, 5400, 7200]
    assert all(moments == pytest.approx([seconds] * 3) for seconds, *moments in ended)


def test_clocks_are_real_again_afterwards():
    before = time.perf_counter(), time.monotonic()
    run(asyncio.sleep(3600))
    assert 0 <= time.perf_counter() - before[0] < 3600
    assert 0 <= time.monotonic() - before[1] < 3600


def test_waiting_for_something_outside_fails():
    async def forever():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer is set"):
        run(forever())


def test_work_for_a_thread_is_done_at_once():
    def fails():
        raise ValueError("broken")

    async def simulation():
        assert await asyncio.to_thread(sum, [1, 2]) == 3
        with pytest.raises(ValueError, match="broken"):
            await asyncio.to_thread(fails)
        return time.perf_counter()

    assert run(simulation()) == 0
