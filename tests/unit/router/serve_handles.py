"""Stand-ins for the handles of Ray Serve, with replies that a test chooses."""

import asyncio
import math
from types import SimpleNamespace

import numpy as np
from ray.exceptions import ActorDiedError

from kv_transfer.codec import encode
from kv_transfer.messages import (
    ACCEPTED,
    Completion,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    Selection,
    SelectRequest,
)
from router.pools.availability import PoolStates
from router.pools.serve_pools import ServePools

REQUEST = GenerateRequest("r", KeptPrompt.dense([1, 2, 3]))
SELECT = SelectRequest("r", np.array([1, 2, 3], np.int32))
SELECTION = encode(Selection(KeptPrompt.dense([1, 2, 3]), 1.0))
FOREVER = object()


def output(text, finished=False):
    return encode(GenerateOutput([Completion(0, text, np.array([1], np.int32))], finished))


GOOD = (ACCEPTED, output("a"), output("b", finished=True))


async def play(step):
    """The behaviour of a replica: it answers, fails or hangs."""
    if step is FOREVER:
        await asyncio.Event().wait()
    if isinstance(step, Exception):
        raise step
    return step


class Reply:
    """Stands in for DeploymentResponse and DeploymentResponseGenerator."""

    def __init__(self, *steps):
        self._steps = list(steps)
        self.cancelled = self.waiting = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._steps:
            raise StopAsyncIteration
        return await self._play()

    def __await__(self):
        return self._play().__await__()

    async def _play(self):
        self.waiting = True
        return await play(self._steps.pop(0))

    def cancel(self):
        self.cancelled = True


class Handle:
    """Stands in for DeploymentHandle: each call of a method takes the next reply and records its payload."""

    def __init__(self, *replies):
        self.replies, self.payloads, self.streams = list(replies), [], False
        self._left = iter(self.replies)
        self.wishes = []
        self.info = SimpleNamespace(remote=self._call)

    def options(self, *, stream=None, _by_reference=False, method_name="", session_id=""):
        """A handle of the same replicas: with other options, or of one method, whose name and wish are recorded."""
        assert not _by_reference
        if method_name:
            self.wishes.append((method_name, session_id))
            return SimpleNamespace(remote=self._call)
        self.streams = stream
        return self

    def _call(self, *payload):
        self.payloads += payload
        return next(self._left)


def serve_pools(*, speculator=(), target=(), admission_timeout_s=60.0, states=None, intake=None):
    """ServePools with handles that give these replies, and the two handles."""
    handles = Handle(*speculator), Handle(*target)
    return ServePools(*handles, admission_timeout_s, states or PoolStates(math.inf), intake=intake), *handles


def split_pools(*, prefill=(), target=(), speculator=(), states=None):
    """ServePools with a split target, and the handles of its two pools."""
    halves = Handle(*target), Handle(*prefill)
    return ServePools(Handle(*speculator), halves[0], 60.0, states or PoolStates(math.inf), halves[1]), *halves


async def texts(pools):
    return [output.completions[0].text async for output in pools.generate(REQUEST)]


def died():
    return ActorDiedError()
