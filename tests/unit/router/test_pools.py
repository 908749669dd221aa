"""Calls through Serve handles that fail as Ray's handles do: retries, admission, cancellation."""

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, TaskCancelledError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from kv_transfer.codec import decode, encode, encode_error
from kv_transfer.errors import EngineUnavailableError, HandoverError, InvalidRequestError, WireError
from kv_transfer.messages import (
    ACCEPTED,
    Completion,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    ModelInfo,
    Selection,
    SelectRequest,
    SessionHandle,
    WarmUpRequest,
)
from router.migration import MAX_REFUSALS, ReplicaLostError
from router.pools import ServePools
from router.replica_choice import by_prefix, where
from tests.unit.router.conftest import until

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


def serve_pools(*, speculator=(), target=(), admission_timeout_s=60.0):
    """ServePools with handles that give these replies, and the two handles."""
    handles = Handle(*speculator), Handle(*target)
    return ServePools(*handles, admission_timeout_s), *handles


def split_pools(*, prefill=(), target=()):
    """ServePools with a split target, and the handles of its two pools."""
    halves = Handle(*target), Handle(*prefill)
    return ServePools(Handle(), halves[0], 60.0, halves[1]), *halves


async def texts(pools):
    return [output.completions[0].text async for output in pools.generate(REQUEST)]


def died():
    return ActorDiedError()


async def test_outputs_come_through_as_they_were_sent():
    pools, _, target = serve_pools(target=[Reply(*GOOD)])
    assert target.streams
    assert await texts(pools) == ["a", "b"]
    assert target.payloads == [encode(REQUEST)]


@pytest.mark.parametrize("death", [ActorDiedError(), ActorUnavailableError("busy", None)])
@pytest.mark.parametrize(
    ("steps", "accepted"), [((), False), ((ACCEPTED,), True), ((ACCEPTED, output("a")), True)], ids=str
)
async def test_a_replica_that_dies_is_lost(steps, accepted, death):
    """`router.migration` sends the request to another one."""
    pools, _, target = serve_pools(target=[Reply(*steps, death), Reply(*GOOD)])
    stream = pools.generate(REQUEST)
    for _ in steps[1:]:
        await anext(stream)
    with pytest.raises(ReplicaLostError) as lost:
        await anext(stream)
    assert (lost.value.cause, lost.value.accepted) == ("died", accepted)
    assert len(target.payloads) == 1


@pytest.mark.parametrize(
    "leave",
    [encode_error(HandoverError("stops")), AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata())],
    ids=["told", "cancelled"],
)
async def test_a_replica_that_stops_hands_its_answers_over(leave):
    pools, _, _ = serve_pools(target=[Reply(ACCEPTED, output("a"), leave)])
    with pytest.raises(ReplicaLostError) as lost:
        await texts(pools)
    assert (lost.value.cause, lost.value.accepted) == ("drained", True)


@pytest.mark.parametrize(
    "refusal", [BackPressureError(1, 1), DeploymentUnavailableError(DeploymentID("target", "skim")), FOREVER]
)
async def test_a_pool_without_a_free_replica_is_said_in_time(refusal):
    pools, _, target = serve_pools(target=[Reply(refusal)], admission_timeout_s=0.02 if refusal is FOREVER else 60.0)
    waited = r" after 0\.02 s; one may be starting:" if refusal is FOREVER else ";"
    with pytest.raises(EngineUnavailableError, match=f"the target pool has no free replica{waited} try again"):
        await texts(pools)
    assert target.replies[0].cancelled
    assert len(target.payloads) == 1


async def test_admission_ends_the_wait_not_the_answer():
    """The limit does not apply to a replica that has accepted the request."""
    reply = Reply(ACCEPTED, FOREVER)
    pools, _, _ = serve_pools(target=[reply], admission_timeout_s=0.02)
    task = asyncio.create_task(texts(pools))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("steps", [(b"hello",), (output("a"),), ()])
async def test_a_replica_that_answers_out_of_turn(steps):
    pools, _, _ = serve_pools(target=[Reply(*steps)])
    with pytest.raises(EngineUnavailableError, match="sent an unexpected first message"):
        await texts(pools)


@pytest.mark.parametrize("error", [InvalidRequestError("too long"), EngineUnavailableError("engine is dead")])
async def test_an_error_on_the_wire_is_raised_again_and_not_retried(error):
    pools, _, target = serve_pools(target=[Reply(ACCEPTED, encode_error(error)), Reply(*GOOD)])
    with pytest.raises(type(error), match=str(error)):
        await texts(pools)
    assert len(target.payloads) == 1


async def test_bytes_that_are_no_output_are_a_wire_error():
    pools, _, _ = serve_pools(target=[Reply(ACCEPTED, b"hello")])
    with pytest.raises(WireError):
        await texts(pools)


@pytest.mark.parametrize(
    "secret",
    [
        RayTaskError("generate", "Traceback: secret", ValueError("secret")),
        AioRpcError(StatusCode.INTERNAL, Metadata(), Metadata(), details="secret"),
    ],
    ids=["ray", "grpc"],
)
async def test_rays_own_errors_show_nothing_of_their_inside(secret):
    pools, _, _ = serve_pools(target=[Reply(ACCEPTED, secret)], speculator=[Reply(secret)])
    with pytest.raises(EngineUnavailableError, match="the target pool failed on this request") as caught:
        await texts(pools)
    assert "secret" not in str(caught.value)
    with pytest.raises(EngineUnavailableError, match="the speculator pool did not answer") as caught:
        await pools.select(SELECT)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("steps", [(FOREVER,), (ACCEPTED, FOREVER)])
async def test_a_cancelled_generation_is_cancelled_in_the_pool(steps):
    reply = Reply(*steps)
    pools, _, _ = serve_pools(target=[reply])
    task = asyncio.create_task(texts(pools))
    await until(lambda: reply.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled


async def test_an_answer_that_is_not_read_to_its_end_is_cancelled_in_the_pool():
    reply = Reply(*GOOD)
    pools, _, _ = serve_pools(target=[reply])
    stream = pools.generate(REQUEST)
    await anext(stream)
    assert not reply.cancelled
    await stream.aclose()
    assert reply.cancelled


BLOCKS = {"remote_block_ids": [[1, 2]]}


def prefilled(**timings):
    return encode(GenerateOutput([], True, timings=timings, kv_blocks=BLOCKS))


async def test_a_split_target_prefills_in_one_half_and_decodes_in_the_other():
    first = GenerateOutput([Completion(0, "a", np.array([1], np.int32))], True, timings={"queue": 50.0, "prefill": 2.0})
    pools, target, prefill = split_pools(
        prefill=[Reply(ACCEPTED, prefilled(queue=3.0, prefill=40.0))], target=[Reply(ACCEPTED, encode(first))]
    )
    [told] = [output async for output in pools.generate(REQUEST)]
    leg, decoding = (decode(handle.payloads[0], GenerateRequest) for handle in (prefill, target))
    assert (leg.prefill_only, leg.kv_blocks, leg.sampling["max_tokens"]) == (True, None, 1)
    assert (decoding.prefill_only, decoding.kv_blocks, decoding.sampling) == (False, BLOCKS, REQUEST.sampling)
    assert leg.prompt.token_ids.tolist() == decoding.prompt.token_ids.tolist() == [1, 2, 3]
    assert told.timings == {"queue": 3.0, "prefill": 42.0}


@pytest.mark.parametrize(
    "leg",
    [
        [Reply(died()) for _ in range(MAX_REFUSALS)],
        [Reply(ACCEPTED, encode_error(EngineUnavailableError("no")))],
        [Reply(DeploymentUnavailableError(DeploymentID("prefill")))],
        [Reply(ACCEPTED, output("x"), died())],
    ],
)
async def test_whatever_happens_to_the_prefill_leg_the_other_half_answers(leg):
    pools, target, _ = split_pools(prefill=leg, target=[Reply(*GOOD)])
    assert await texts(pools) == ["a", "b"]
    assert target.payloads == [encode(REQUEST)]


async def test_a_prefill_replica_that_dies_is_replaced():
    pools, target, prefill = split_pools(
        prefill=[Reply(died()), Reply(ACCEPTED, died()), Reply(ACCEPTED, prefilled())], target=[Reply(*GOOD)]
    )
    assert await texts(pools) == ["a", "b"]
    assert decode(target.payloads[0], GenerateRequest).kv_blocks == BLOCKS
    assert len(prefill.payloads) == 3


async def test_both_legs_of_a_split_target_read_an_answer_that_has_begun():
    pools, target, prefill = split_pools(prefill=[Reply(ACCEPTED, prefilled())], target=[Reply(*GOOD)])
    request = GenerateRequest("r", REQUEST.prompt.extended([7, 8]), {"max_tokens": 9}, answered=2)
    _ = [output async for output in pools.generate(request)]
    leg, decoding = (decode(handle.payloads[0], GenerateRequest) for handle in (prefill, target))
    assert leg.prompt.token_ids.tolist() == decoding.prompt.token_ids.tolist() == [1, 2, 3, 7, 8]
    assert (leg.answered, decoding.answered) == (0, 2)


async def test_a_prompt_that_the_prefill_leg_refuses_is_refused():
    pools, target, _ = split_pools(prefill=[Reply(ACCEPTED, encode_error(InvalidRequestError("too long")))])
    with pytest.raises(InvalidRequestError, match="too long"):
        await texts(pools)
    assert target.payloads == []


async def test_prompt_log_probabilities_are_made_where_the_answer_is():
    pools, target, prefill = split_pools(target=[Reply(*GOOD)])
    request = GenerateRequest("r", KeptPrompt.dense([1, 2, 3]), {"prompt_logprobs": 1})
    _ = [output async for output in pools.generate(request)]
    assert (prefill.payloads, target.payloads) == ([], [encode(request)])


async def test_a_request_cancelled_in_its_prefill_leg_never_reaches_the_other_half():
    reply = Reply(ACCEPTED, FOREVER)
    pools, target, _ = split_pools(prefill=[reply])
    task = asyncio.create_task(texts(pools))
    await until(lambda: reply.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled
    assert target.payloads == []


async def test_a_selection_comes_back():
    pools, speculator, _ = serve_pools(speculator=[Reply(SELECTION)])
    assert (await pools.select(SELECT)).kept.token_ids.tolist() == [1, 2, 3]
    assert speculator.payloads == [encode(SELECT)]


async def test_a_cancelled_selection_is_cancelled_in_the_pool():
    reply = Reply(FOREVER)
    pools, _, _ = serve_pools(speculator=[reply])
    task = asyncio.create_task(pools.select(SELECT))
    await until(lambda: reply.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled


async def test_while_a_selection_waits_both_halves_of_the_target_are_woken_once(monkeypatch):
    """Otherwise two empty pools would start one after the other."""
    monkeypatch.setattr("router.pools.WAKE_AFTER_S", 0.0)
    halves = Handle(Reply(died()), Reply(FOREVER)), Handle(Reply(FOREVER), Reply(FOREVER))
    pools = ServePools(Handle(Reply(FOREVER), Reply(FOREVER)), halves[0], 60.0, halves[1])
    selecting = [asyncio.create_task(pools.select(SELECT)) for _ in range(2)]
    await until(lambda: all(handle.replies[0].waiting for handle in halves))
    await asyncio.sleep(0.01)
    for task in selecting:
        task.cancel()
    await asyncio.wait(selecting)
    assert not any(handle.replies[1].waiting for handle in halves)


async def test_waking_the_target_is_no_part_of_the_request_that_waited_first(monkeypatch):
    """Serve marks the calls of a request by a context variable and cancels them with the request."""
    monkeypatch.setattr("router.pools.WAKE_AFTER_S", 0.0)
    request, seen = ContextVar("request", default=None), []
    pools, _, target = serve_pools(speculator=[Reply(FOREVER)], target=[Reply(FOREVER)])
    wake = target.info.remote
    target.info = SimpleNamespace(remote=lambda: (seen.append(request.get()), wake())[1])
    request.set("may be cancelled")
    selecting = asyncio.create_task(pools.select(SELECT))
    await until(lambda: seen)
    selecting.cancel()
    await asyncio.wait([selecting])
    assert seen == [None]


async def test_a_selection_that_is_quick_wakes_nobody(monkeypatch):
    monkeypatch.setattr("router.pools.WAKE_AFTER_S", 0.01)
    pools, _, target = serve_pools(speculator=[Reply(SELECTION)], target=[Reply(FOREVER)])
    await pools.select(SELECT)
    await asyncio.sleep(0.02)
    assert not target.replies[0].waiting


@pytest.mark.parametrize("failure", [ActorDiedError(), BackPressureError(1, 1), TaskCancelledError()])
async def test_a_selection_that_fails_says_so(failure):
    pools, _, _ = serve_pools(speculator=[Reply(failure)])
    with pytest.raises(EngineUnavailableError, match="the speculator pool did not answer"):
        await pools.select(SELECT)


async def test_an_error_of_the_speculator_is_raised_again():
    pools, _, _ = serve_pools(speculator=[Reply(encode_error(InvalidRequestError("bad id")))])
    with pytest.raises(InvalidRequestError, match="bad id"):
        await pools.select(SELECT)


async def test_connecting_learns_what_the_pools_run():
    infos = [ModelInfo(name, "A", 10, "f", 100, 200, "mock") for name in ("small", "big")]
    pools, _, _ = serve_pools(speculator=[Reply(encode(infos[0]))], target=[Reply(encode(infos[1]))])
    await pools.connect()
    assert (pools.speculator.path, pools.target.path) == ("small", "big")


@pytest.mark.parametrize(
    "reply", [None, DeploymentUnavailableError(DeploymentID("speculator", "skim")), TimeoutError()]
)
async def test_the_replica_of_a_session_is_told_that_it_ended_and_a_dead_one_is_not_missed(reply):
    pools, speculator, _ = serve_pools(speculator=[Reply(reply)])
    await pools.end_session(SessionHandle("here:1", "s"))
    assert (speculator.wishes, speculator.payloads) == ([("end_session", where("s"))], ["s"])


@pytest.mark.parametrize("pool", ["speculator", "target"])
async def test_a_warm_up_goes_to_the_replica_that_has_the_prefix(pool):
    request = WarmUpRequest("r-next-turn", KeptPrompt.dense([1, 2]), "r")
    pools, *handles = serve_pools(**{pool: [Reply(True), Reply(False), Reply(died())]})
    handle = handles[("speculator", "target").index(pool)]
    assert [await pools.warm_up(pool, request) for _ in range(2)] == [True, False]
    with pytest.raises(EngineUnavailableError, match=f"the {pool} pool did not warm up"):
        await pools.warm_up(pool, request)
    assert handle.wishes == [("warm_up", where("r"))] * 3
    assert handle.payloads == [encode(request)] * 3


async def test_a_split_target_is_not_warmed_up():
    pools, target, prefill = split_pools()
    assert not await pools.warm_up("target", WarmUpRequest("r-next-turn", KeptPrompt.dense([1, 2]), "r"))
    assert target.wishes == prefill.wishes == []


async def test_every_leg_prefers_the_replicas_of_the_prefix():
    ready = [Reply(*GOOD), Reply(*GOOD)]
    pools, target, prefill = split_pools(prefill=[Reply(ACCEPTED, prefilled())], target=ready)
    request = replace(REQUEST, affinity="abc")
    assert [output async for output in pools.generate(request)]
    assert (prefill.wishes, target.wishes) == ([("generate", by_prefix("abc", "r"))],) * 2
    pools, speculator, _ = serve_pools(speculator=[Reply(SELECTION), Reply(SELECTION)])
    await pools.select(replace(SELECT, affinity="abc"))
    await pools.select(SELECT)
    assert speculator.wishes == [("select", by_prefix("abc", "r")), ("select", by_prefix("", "r"))]
