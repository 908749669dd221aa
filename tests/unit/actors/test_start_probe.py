"""What a replica does with the result of its start probe."""

from types import SimpleNamespace

import pytest

from actors import pool_actor
from actors.pool_actor import PoolActor, PoolSettings
from skim_common.errors import SkimError


class Replica(PoolActor):
    pool = "target"

    async def stats(self):
        return {"drafts": 3}


@pytest.fixture
def noted(monkeypatch):
    reasons = []

    async def note(reason):
        reasons.append(reason)

    monkeypatch.setattr(pool_actor, "note_failed_probe", note)
    return reasons


@pytest.fixture
def replica():
    replica = Replica()
    replica._engine = SimpleNamespace(close=lambda: None, metric_families=list)
    return replica


async def gauges(replica):
    return {name: value for name, _, _, value in (await replica.metrics("m")).gauges}


async def probed(replica, failure, **settings):
    asked = []

    async def find_failure():
        asked.append(1)
        return failure

    await replica._probe(PoolSettings(**{"engine": "vllm", "model": "m", **settings}), find_failure)
    return len(asked)


async def test_a_failure_is_noted_and_counted(replica, noted):
    assert await probed(replica, "a reason", start_probe="dense") == 1
    assert noted == ["a reason"]
    assert await gauges(replica) == {"skim_target_failed_probe": 1}


async def test_a_pass_is_counted(replica, noted):
    await probed(replica, None, start_probe="refuse")
    assert noted == []
    assert await gauges(replica) == {"skim_target_failed_probe": 0}


async def test_refuse_fails_the_start(replica, noted):
    with pytest.raises(SkimError, match="the start probe has failed: a reason"):
        await probed(replica, "a reason", start_probe="refuse")
    assert noted == []


@pytest.mark.parametrize("settings", [{"start_probe": "off"}, {"start_probe": "dense", "engine": "mock"}])
async def test_off_and_engines_without_hooks_ask_nothing(replica, noted, settings):
    assert await probed(replica, "a reason", **settings) == 0
    assert await gauges(replica) == {}
