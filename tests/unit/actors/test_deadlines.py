"""A request whose deadline is over leaves both actors: it runs no more in the engine, and the caller gets the error."""

import asyncio

import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.messages import Envelope, GenerateOutput, GenerateRequest, KeptPrompt, Selection, SelectRequest
from skim_common.errors import DeadlineError
from tests.unit.actors.mock_actors import IDS, replies, speculator, target
from tests.unit.router.conftest import until

FOREVER_MS = 600_000


def generate_request(timeout_ms):
    return encode(
        GenerateRequest("r", KeptPrompt.dense(IDS), {"max_tokens": 3}, envelope=Envelope(timeout_ms=timeout_ms))
    )


async def test_the_target_stops_a_prefill():
    actor = await target(prefill_ms=FOREVER_MS)
    _, last = await replies(actor, generate_request(20))
    with pytest.raises(DeadlineError):
        decode(last, GenerateOutput)
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1}


async def test_the_target_stops_an_answer():
    actor = await target(decode_ms=FOREVER_MS)
    _, first, last = await replies(actor, generate_request(20))
    assert not decode(first, GenerateOutput).finished
    with pytest.raises(DeadlineError):
        decode(last, GenerateOutput)
    assert (await actor.stats())["running"] == 0


async def test_the_target_drops_a_request_that_waits_in_its_queue():
    actor = await target(prefill_ms=FOREVER_MS, one_at_a_time=True)
    ahead = asyncio.create_task(replies(actor, generate_request(None)))
    await until(lambda: actor._engine.started)
    *_, last = await replies(actor, generate_request(20))
    with pytest.raises(DeadlineError):
        decode(last, GenerateOutput)
    assert await actor.stats() == {"started": 2, "running": 1, "aborted": 1}
    ahead.cancel()


async def test_the_speculator_stops_a_selection():
    actor = await speculator(latency_ms=FOREVER_MS)
    [reply] = [reply async for reply in actor.select(encode(SelectRequest("r", IDS, envelope=Envelope(timeout_ms=20))))]
    with pytest.raises(DeadlineError):
        decode(reply, Selection)
    stats = await actor.stats()
    assert (stats["started"], stats["running"], stats["aborted"]) == (1, 0, 1)


async def test_a_deadline_that_is_met_changes_nothing():
    """Negative control: the same requests with time are answered."""
    _, *outputs = await replies(await target(), generate_request(FOREVER_MS))
    assert decode(outputs[-1], GenerateOutput).finished
    [reply] = [
        r
        async for r in (await speculator()).select(
            encode(SelectRequest("r", IDS, envelope=Envelope(timeout_ms=FOREVER_MS)))
        )
    ]
    assert decode(reply, Selection).kept.context_length == IDS.size
