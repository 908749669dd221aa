"""The replicas of a pool as peers: who they are, and calls to them over a handle that fails as Serve's do."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from ray import serve
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentID, ReplicaID

from actors import peers as module
from actors.peers import ServePeers, at, note_serving
from kv_transfer.layout import Frame
from kv_transfer.messages import ACCEPTED
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import WindowScores, WindowsRequest
from kv_transfer.wire.codec import encode, encode_error
from skim_common.errors import EngineUnavailableError, InvalidRequestError, WireError
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import FOREVER, Handle, Reply

POOL = DeploymentID("speculator", "skim")
IDS = [ReplicaID(name, POOL) for name in ("one", "two", "three")]
EMPTY = np.empty(0, np.int32)
REQUEST = WindowsRequest(
    "r",
    "model",
    np.arange(5, dtype=np.int32),
    np.array([5], np.int32),
    EMPTY,
    EMPTY,
    Frame(*[EMPTY] * 3),
    SelectionOptions(),
)
SCORES = encode(WindowScores(np.arange(5, dtype=np.float32), 1.5, 3))


@pytest.fixture
def connected(monkeypatch):
    """A function: the peers of replica "one" that have looked for the others, and the handle with these replies."""
    monkeypatch.setattr(module, "_serving", {})

    async def connect(*replies):
        handle = Handle(Reply(b"info"), *replies)
        context = SimpleNamespace(deployment="speculator", app_name="skim", replica_id=IDS[0], replica_tag="one")
        monkeypatch.setattr(serve, "get_replica_context", lambda: context)
        monkeypatch.setattr(serve, "get_deployment_handle", lambda *names: handle)
        peers = ServePeers()
        assert peers.replicas() == ()
        note_serving(IDS)
        note_serving([ReplicaID("other", DeploymentID("target", "skim"))])
        await until(peers.replicas)
        return peers, handle

    return connect


async def test_the_replicas_of_the_own_pool_are_known(connected):
    peers, _ = await connected()
    assert (peers.own, peers.replicas()) == ("one", ("one", "two", "three"))
    note_serving(IDS[:2])
    assert peers.replicas() == ("one", "two")


async def test_a_read_goes_to_the_replica_and_tells_when_it_begins(connected):
    peers, handle = await connected(Reply(ACCEPTED, SCORES))
    begun = []
    scores = await peers.read("two", REQUEST, lambda: begun.append(True))
    assert (scores.importance.tolist(), scores.queue_ms, scores.cached_tokens) == ([0, 1, 2, 3, 4], 1.5, 3)
    assert (handle.wishes, handle.payloads, begun) == ([("read_windows", at("two"))], [encode(REQUEST)], [True])
    assert handle.streams


@pytest.mark.parametrize(
    ("steps", "error", "begins"),
    [
        ((ActorDiedError(),), EngineUnavailableError, False),
        ((ACCEPTED, ActorDiedError()), EngineUnavailableError, True),
        ((), EngineUnavailableError, False),
        ((ACCEPTED,), WireError, True),
        ((SCORES,), EngineUnavailableError, False),
        ((ACCEPTED, encode_error(InvalidRequestError("no"))), InvalidRequestError, True),
    ],
)
async def test_a_read_that_fails_is_an_error_of_skim(connected, steps, error, begins):
    reply, begun = Reply(*steps), []
    peers, _ = await connected(reply)
    with pytest.raises(error):
        await peers.read("two", REQUEST, lambda: begun.append(True))
    assert (bool(begun), reply.cancelled) == (begins, True)


async def test_a_read_that_is_cancelled_ends_in_the_replica(connected):
    reply = Reply(ACCEPTED, FOREVER)
    peers, _ = await connected(reply)
    task = asyncio.create_task(peers.read("two", REQUEST, lambda: None))
    await until(lambda: reply.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled
