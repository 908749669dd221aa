"""How a replica starts, and starts again after failures."""

import gc
import threading
from contextlib import suppress
from threading import Timer
from types import SimpleNamespace

import pytest

from actors.lifecycle import starts as startup
from actors.lifecycle.starts import MAX_PAUSE_S, gc_frozen, last_failed_start, retried_start


@pytest.fixture(autouse=True)
def collecting():
    yield
    gc.enable()


def test_what_was_made_is_left_alone_and_all_else_collected():
    frozen = gc.get_freeze_count()
    with gc_frozen():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)
    assert not any(found is made[0] for found in gc.get_objects())


def test_a_start_that_fails_leaves_the_collector_on():
    with pytest.raises(RuntimeError), gc_frozen():
        raise RuntimeError
    assert gc.isenabled()


@pytest.fixture
def in_ray(monkeypatch, kv_store):
    """As in a replica's process: pauses are noted instead of slept."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(startup.asyncio, "sleep", sleep)
    return pauses


async def start(*settings, fails):
    async with retried_start("target", *settings, limit_s=3600):
        if fails:
            raise RuntimeError


async def test_pauses_grow_with_the_failures_in_a_row(in_ray):
    for _ in range(9):
        with pytest.raises(RuntimeError):
            await start("model", fails=True)
    assert in_ray == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MAX_PAUSE_S, MAX_PAUSE_S]
    await start("model", fails=False)
    in_ray.clear()
    await start("model", fails=False)
    assert in_ray == []


async def test_other_settings_start_without_a_pause(in_ray):
    with pytest.raises(RuntimeError):
        await start("wrong", fails=True)
    await start("mended", fails=False)
    assert in_ray == []


async def test_a_failure_is_noted_for_the_replicas_own_application(in_ray, monkeypatch):
    monkeypatch.setattr(startup, "this_replica", lambda: SimpleNamespace(app_name="second"))
    with pytest.raises(RuntimeError):
        await start("wrong", fails=True)
    assert last_failed_start("second", "target").failures == 1
    assert last_failed_start("skim", "target") is None


async def test_a_start_that_hangs_ends_its_process_and_counts_as_failed(kv_store, monkeypatch):
    """It blocks the event loop, as a starting engine does. Without a limit it would end at no time."""
    ended, exited = threading.Event(), []
    monkeypatch.setattr(startup, "end_process", ended.set)
    monkeypatch.setattr(startup, "KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(startup.os, "_exit", exited.append)
    with suppress(KeyboardInterrupt):
        async with retried_start("target", "hangs", limit_s=0.01):
            assert ended.wait(timeout=60)
            raise KeyboardInterrupt
    found = last_failed_start("", "target")
    assert (found.failures, found.reason) == (1, "the start took longer than start_timeout_s (0.01 s)")


async def test_a_start_without_a_limit_may_take_long(kv_store, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(startup, "end_process", ended.set)
    async with retried_start("router", "waits", limit_s=None):
        assert not ended.wait(timeout=0.2)


async def test_a_start_in_time_ends_nothing(kv_store, monkeypatch):
    timers = []
    monkeypatch.setattr(startup.threading, "Timer", lambda *args: timers.append(Timer(*args)) or timers[-1])
    await start("model", fails=False)
    with pytest.raises(RuntimeError):
        await start("model", fails=True)
    assert [timer.finished.is_set() for timer in timers] == [True, True], "cancelled"
    assert last_failed_start("", "target").failures == 1
