"""How a replica starts, starts again after failures, and ends when its engine dies or hangs."""

import asyncio
import gc
import threading
from contextlib import suppress
from threading import Timer
from types import SimpleNamespace

import pytest

from actors.lifecycle import startup as start_up
from actors.lifecycle.engine_watch import EngineWatch
from actors.lifecycle.failed_starts import last_failed_start
from actors.lifecycle.heartbeat import Heartbeat
from actors.lifecycle.startup import LONGEST_PAUSE_S, retried_start, uncollected
from skim_common.errors import EngineUnavailableError
from tests.unit.router.conftest import until


@pytest.fixture(autouse=True)
def collecting():
    yield
    gc.enable()


def test_what_was_made_is_left_alone_and_all_else_collected():
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)
    assert not any(found is made[0] for found in gc.get_objects())


def test_a_start_that_fails_leaves_the_collector_on():
    with pytest.raises(RuntimeError), uncollected():
        raise RuntimeError
    assert gc.isenabled()


@pytest.fixture
def in_ray(monkeypatch, kv_store):
    """As in a replica's process: pauses are noted instead of slept."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(start_up.asyncio, "sleep", sleep)
    return pauses


async def start(*settings, fails):
    async with retried_start("target", *settings, limit_s=3600):
        if fails:
            raise RuntimeError


async def test_pauses_grow_with_the_failures_in_a_row(in_ray):
    for _ in range(9):
        with pytest.raises(RuntimeError):
            await start("model", fails=True)
    assert in_ray == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
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
    monkeypatch.setattr(start_up, "_get_internal_replica_context", lambda: SimpleNamespace(app_name="second"))
    with pytest.raises(RuntimeError):
        await start("wrong", fails=True)
    assert last_failed_start("second", "target").failures == 1
    assert last_failed_start("skim", "target") is None


async def test_a_start_that_hangs_ends_its_process_and_counts_as_failed(kv_store, monkeypatch):
    """It blocks the event loop, as a starting engine does. Without a limit it would end at no time."""
    ended, exited = threading.Event(), []
    monkeypatch.setattr(start_up, "end_process", ended.set)
    monkeypatch.setattr(start_up, "KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(start_up.os, "_exit", exited.append)
    with suppress(KeyboardInterrupt):
        async with retried_start("target", "hangs", limit_s=0.01):
            assert ended.wait(timeout=60)
            raise KeyboardInterrupt
    found = last_failed_start("", "target")
    assert (found.failures, found.reason) == (1, "the start took longer than start_timeout_s (0.01 s)")


async def test_a_start_without_a_limit_may_take_long(kv_store, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(start_up, "end_process", ended.set)
    async with retried_start("router", "waits", limit_s=None):
        assert not ended.wait(timeout=0.2)


async def test_a_start_in_time_ends_nothing(kv_store, monkeypatch):
    timers = []
    monkeypatch.setattr(start_up.threading, "Timer", lambda *args: timers.append(Timer(*args)) or timers[-1])
    await start("model", fails=False)
    with pytest.raises(RuntimeError):
        await start("model", fails=True)
    assert [timer.finished.is_set() for timer in timers] == [True, True], "cancelled"
    assert last_failed_start("", "target").failures == 1


class Mortal:
    """An engine that dies, or answers no more, when it is told to."""

    dead = hangs = False

    async def check_health(self):
        if self.dead:
            raise EngineUnavailableError("dead")

    async def sign_of_life(self):
        if self.hangs:
            await asyncio.Event().wait()


@pytest.fixture
def ends(monkeypatch):
    ends = []
    monkeypatch.setattr(start_up, "end_process", lambda: ends.append(1))
    monkeypatch.setattr(start_up, "WATCH_PERIOD_S", 0.0)
    return ends


async def test_a_replica_ends_when_its_engine_dies(monkeypatch, ends):
    monkeypatch.setattr(start_up.ray, "is_initialized", lambda: True)
    engine = Mortal()
    watch = EngineWatch(engine, "target")
    for _ in range(10):
        await asyncio.sleep(0)
    await watch.check()
    assert ends == []
    engine.dead = True
    await until(lambda: bool(ends))
    watch.stop()
    ends.clear()
    await watch.check()
    assert ends == [], "an engine that is closed on purpose ends nothing"


async def test_a_failed_request_looks_at_once(monkeypatch, ends):
    monkeypatch.setattr(start_up, "WATCH_PERIOD_S", 3600.0)
    monkeypatch.setattr(start_up.ray, "is_initialized", lambda: True)
    engine = Mortal()
    watch = EngineWatch(engine, "target")
    engine.dead = True
    await watch.check()
    watch.stop()
    assert ends == [1]


async def test_a_replica_ends_when_its_engine_hangs(monkeypatch, ends, caplog):
    now = [0.0]
    monkeypatch.setattr(start_up, "WATCH_PERIOD_S", 3600.0)
    monkeypatch.setattr(start_up.ray, "is_initialized", lambda: True)
    engine = Mortal()
    monkeypatch.setattr(start_up, "Heartbeat", lambda ask, limit_s: Heartbeat(ask, limit_s, lambda: now[0]))
    asked = []
    monkeypatch.setattr(start_up, "states", lambda replica: "VLLM::EngineCore 7 (stopped)")
    monkeypatch.setattr(start_up, "ask_for_stacks", lambda replica: asked.append(list(ends)))
    watch = EngineWatch(engine, "target", hung_after_s=60.0)

    async def pass_by(seconds):
        for _ in range(seconds):
            now[0] += 1.0
            await watch.check()
            await asyncio.sleep(0)

    await pass_by(600)
    assert ends == []
    engine.hangs = True
    await pass_by(50)
    assert ends == []
    await pass_by(20)
    await until(lambda: ends)
    assert asked[0] == [], "the stacks are shown before the processes are killed"
    assert "VLLM::EngineCore 7 (stopped)" in caplog.text
    assert "this target replica ends, because its engine hangs: no sign of life for 60 s" in caplog.text
    watch.stop()


async def test_outside_ray_nothing_ends(ends):
    engine = Mortal()
    engine.dead = True
    await EngineWatch(engine, "target").check()
    assert ends == []


async def test_a_replica_that_loses_a_node_ends(monkeypatch, ends):
    """Ray has moved a bundle to another node, where no rank runs."""
    nodes, seen = {0: "one", 1: "two"}, []

    def nodes_of(group):
        seen.append(group)
        return dict(nodes)

    monkeypatch.setattr(start_up.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(start_up, "NODES_PERIOD_S", 0.0)
    monkeypatch.setattr(start_up, "nodes_of", nodes_of)
    watch = EngineWatch(Mortal(), "target", object())
    await until(lambda: len(seen) > 3)
    assert ends == []
    nodes[1] = "three"
    await until(lambda: bool(ends))
    watch.stop()
