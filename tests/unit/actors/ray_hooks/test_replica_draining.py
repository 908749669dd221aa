"""A replica that Serve stops hands its answers over before it is killed."""

import asyncio
from types import SimpleNamespace

import pytest

from actors.ray_hooks.replica_draining import Draining
from kv_transfer.codec import decode
from kv_transfer.messages import (
    ACCEPTED,
    GenerateOutput,
)
from skim_common.errors import HandoverError
from tests.unit.actors.mock_actors import (
    generate_request,
    replies,
    target,
)


class StoppingReplica:
    """Stands in for Serve's object of a replica. The clock stands still until a test moves it."""

    def __init__(self, timeout_s):
        self._shutting_down, self.now = False, 0.0
        self._deployment_config = SimpleNamespace(graceful_shutdown_timeout_s=timeout_s)


@pytest.mark.parametrize(("timeout_s", "wait_s"), [(60.0, 55.0), (4.0, 2.0), (0.0, 0.0)])
async def test_a_replica_that_stops_hands_its_answers_over_before_it_is_killed(timeout_s, wait_s):
    actor, replica = await target(), StoppingReplica(timeout_s)
    actor._draining = Draining(replica, lambda: replica.now)
    stream = actor.generate(generate_request(max_tokens=9))
    assert await anext(stream) == ACCEPTED
    replica.now = 1000.0
    seen = [decode(await anext(stream), GenerateOutput)]
    replica._shutting_down = True
    if wait_s:
        seen.append(decode(await anext(stream), GenerateOutput))
        replica.now += wait_s - 0.1
        seen.append(decode(await anext(stream), GenerateOutput))
        replica.now += 0.1
    with pytest.raises(HandoverError, match="another one continues the answer"):
        decode(await anext(stream), GenerateOutput)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert [output.finished for output in seen] == [False] * len(seen)
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1}


async def test_a_request_without_a_token_is_handed_over_too(monkeypatch):
    """The prompt takes longer than the replica has. Serve would kill it, and the router count a death."""
    monkeypatch.setattr("actors.ray_hooks.replica_draining.POLL_S", 0.001)
    actor, replica = await target(prefill_ms=3.6e6), StoppingReplica(60.0)
    actor._draining = Draining(replica, lambda: replica.now)
    stream = actor.generate(generate_request())
    assert await anext(stream) == ACCEPTED
    reply = asyncio.ensure_future(anext(stream))
    for replica._shutting_down, replica.now in ((False, 100.0), (True, 200.0), (True, 254.9)):
        await asyncio.sleep(0.05)
        assert not reply.done()
    replica.now = 255.1
    with pytest.raises(HandoverError, match="another one continues the answer"):
        decode(await reply, GenerateOutput)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1}


async def test_a_cancelled_request_is_not_handed_over(monkeypatch):
    monkeypatch.setattr("actors.ray_hooks.replica_draining.POLL_S", 0.001)
    actor, replica = await target(prefill_ms=3.6e6), StoppingReplica(60.0)
    actor._draining = Draining(replica, lambda: replica.now)
    stream = actor.generate(generate_request())
    assert await anext(stream) == ACCEPTED
    reply = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    reply.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reply
    await actor._draining._watch  # it ends with the last wait
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1}


async def test_an_answer_that_ends_just_then_is_not_handed_over():
    actor, replica = await target(), StoppingReplica(0.0)
    actor._draining = Draining(replica)
    replica._shutting_down = True
    _, last = await replies(actor, generate_request(max_tokens=1))
    assert decode(last, GenerateOutput).finished


async def test_a_replica_asks_serves_object_of_itself(monkeypatch):
    """Negative control: no such object in this process."""
    own = StoppingReplica(0.0)
    own._shutting_down = True
    for actors in ({"other": object(), "own": SimpleNamespace(_replica_impl=own)}, {"other": object()}):
        monkeypatch.setattr("actors.ray_hooks.replica_draining.global_worker", SimpleNamespace(actors=actors))
        *_, last = await replies(await target(), generate_request(max_tokens=9))
        if "own" in actors:
            with pytest.raises(HandoverError):
                decode(last, GenerateOutput)
        else:
            assert decode(last, GenerateOutput).finished
