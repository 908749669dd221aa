"""A replica that hangs or fails costs no other's reply."""

import asyncio
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentBroadcastResponse

from actors.ray_hooks.serve import replies_of_all


class Result:
    """Stands in for Serve's ReplicaResult."""

    def __init__(self, reply):
        self._reply = reply

    async def get_async(self):
        if self._reply is None:
            await asyncio.Event().wait()
        if isinstance(self._reply, Exception):
            raise self._reply
        return self._reply


def response(*replies):
    """Serve's own response to a broadcast."""

    async def results():
        return [Result(reply) for reply in replies]

    return DeploymentBroadcastResponse(results(), None)


async def ask(broadcast):
    handle = SimpleNamespace(broadcast=lambda method, *args: broadcast)
    return await replies_of_all(handle, "metrics", "demo", timeout_s=0.05)


async def test_the_others_are_heard():
    hangs, died, one, two = await ask(response(None, ActorDiedError(), "one", "two"))
    assert isinstance(hangs, TimeoutError)
    assert isinstance(died, ActorDiedError)
    assert (one, two) == ("one", "two")


async def test_serves_own_way_loses_all():
    """Negative control."""
    with pytest.raises(TimeoutError):
        await response(None, "one").results_async(timeout_s=0.05, return_exceptions=True)


async def test_a_deployment_without_replicas_says_so():
    async def nobody():
        raise DeploymentUnavailableError(None)

    with pytest.raises(DeploymentUnavailableError):
        await ask(DeploymentBroadcastResponse(nobody(), None))
