"""A replica ends when its engine dies or hangs, or when it loses a node."""

import asyncio

import pytest

from actors.lifecycle import watch as engine_watch
from actors.lifecycle.watch import EngineWatch, Heartbeat
from skim_common.errors import EngineUnavailableError
from tests.unit.router.conftest import until


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
    monkeypatch.setattr(engine_watch, "end_process", lambda: ends.append(1))
    monkeypatch.setattr(engine_watch, "WATCH_PERIOD_S", 0.0)
    return ends


async def test_a_replica_ends_when_its_engine_dies(monkeypatch, ends):
    monkeypatch.setattr(engine_watch.ray, "is_initialized", lambda: True)
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
    monkeypatch.setattr(engine_watch, "WATCH_PERIOD_S", 3600.0)
    monkeypatch.setattr(engine_watch.ray, "is_initialized", lambda: True)
    engine = Mortal()
    watch = EngineWatch(engine, "target")
    engine.dead = True
    await watch.check()
    watch.stop()
    assert ends == [1]


async def test_a_replica_ends_when_its_engine_hangs(monkeypatch, ends, caplog):
    now = [0.0]
    monkeypatch.setattr(engine_watch, "WATCH_PERIOD_S", 3600.0)
    monkeypatch.setattr(engine_watch.ray, "is_initialized", lambda: True)
    engine = Mortal()
    monkeypatch.setattr(engine_watch, "Heartbeat", lambda ask, limit_s: Heartbeat(ask, limit_s, lambda: now[0]))
    asked = []
    monkeypatch.setattr(engine_watch, "states", lambda replica: "VLLM::EngineCore 7 (stopped)")
    monkeypatch.setattr(engine_watch, "ask_for_stacks", lambda replica: asked.append(list(ends)))
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

    monkeypatch.setattr(engine_watch.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(engine_watch, "NODES_PERIOD_S", 0.0)
    monkeypatch.setattr(engine_watch, "nodes_of", nodes_of)
    watch = EngineWatch(Mortal(), "target", object())
    await until(lambda: len(seen) > 3)
    assert ends == []
    nodes[1] = "three"
    await until(lambda: bool(ends))
    watch.stop()
