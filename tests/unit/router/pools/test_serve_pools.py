"""Calls through Serve handles that fail as Ray's handles do: retries, admission, cancellation."""

import asyncio
from dataclasses import replace

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from kv_transfer.codec import decode, encode, encode_error
from kv_transfer.messages import ACCEPTED, GenerateRequest, SessionHandle
from router.admission.intake_lock import IntakeLock
from router.pools.affinity_router import where
from router.pools.migration import ReplicaLostError
from router.pools.serve_pools import MAX_TOKENS, MESSAGE_MS, TOKEN_MS
from skim_common.errors import EngineUnavailableError, HandoverError, InvalidRequestError, WireError
from skim_common.models.info import ModelInfo
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import (
    FOREVER,
    GOOD,
    REQUEST,
    SELECT,
    Reply,
    output,
    serve_pools,
    texts,
)


async def test_outputs_come_through_as_they_were_sent():
    pools, _, target = serve_pools(target=[Reply(*GOOD)])
    assert target.streams
    assert await texts(pools) == ["a", "b"]
    assert target.payloads == [encode(REQUEST)]


async def test_the_more_answers_run_the_fewer_messages_each_is_asked_for():
    pools, _, target = serve_pools(target=[Reply(*GOOD) for _ in range(400)])
    answers = [pools.generate(REQUEST) for _ in range(300)]
    for answer in answers:
        await anext(answer)
    asked = [decode(payload, GenerateRequest).sampling.get("stream_interval", 1) for payload in target.payloads]
    two = int(2 * TOKEN_MS / MESSAGE_MS)
    assert asked[:two] == [1] * two
    assert asked[two : two + 2] == [2, 2]
    assert asked[-1] == MAX_TOKENS
    for answer in answers:
        await answer.aclose()
    assert await texts(pools) == ["a", "b"]
    assert target.payloads[-1] == encode(REQUEST)  # again


async def test_requests_that_wait_to_be_taken_in_count_as_answers_that_run():
    intake = IntakeLock()
    pools, _, target = serve_pools(target=[Reply(*GOOD)], intake=intake)
    leave = await intake.enter()
    waiting = [asyncio.create_task(intake.enter()) for _ in range(100)]
    await asyncio.sleep(0)
    await texts(pools)
    assert decode(target.payloads[0], GenerateRequest).sampling["stream_interval"] == 4
    leave()
    for task in waiting:
        (await task)()


@pytest.mark.parametrize("death", [ActorDiedError(), ActorUnavailableError("busy", None)])
@pytest.mark.parametrize(
    ("steps", "accepted"), [((), False), ((ACCEPTED,), True), ((ACCEPTED, output("a")), True)], ids=str
)
async def test_a_replica_that_dies_is_lost(steps, accepted, death):
    """`router.pools.migration` sends the request to another one."""
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


async def test_a_replica_of_another_release_refuses_the_request():
    told = bytearray(encode_error(WireError("a message has version 9, this side reads version 8")))
    told[4] -= 1
    pools, _, _ = serve_pools(target=[Reply(ACCEPTED, bytes(told))])
    with pytest.raises(ReplicaLostError) as lost:
        await texts(pools)
    assert (lost.value.cause, lost.value.accepted) == ("refused", False)


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


async def test_a_request_is_admitted_when_a_replica_confirms_it():
    pools, _, _ = serve_pools(target=[Reply(*GOOD), Reply(BackPressureError(1, 1))])
    admitted = []
    stream = pools.generate(REQUEST, lambda: admitted.append("first"))
    await anext(stream)
    assert admitted == ["first"]
    with pytest.raises(EngineUnavailableError):
        await anext(pools.generate(REQUEST, lambda: admitted.append("second")))
    assert admitted == ["first"]


async def test_a_request_that_cannot_be_encoded_does_not_count_as_running():
    """Answers would come in larger pieces for ever (`stream_interval`)."""
    pools, *_ = serve_pools(target=[Reply(*GOOD)])
    with pytest.raises(WireError):
        await anext(pools.generate(replace(REQUEST, sampling={"unknown": object()})))
    assert pools._running == 0
