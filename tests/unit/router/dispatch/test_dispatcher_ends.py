"""Requests that end early: what is aborted in the pools, and who ends the drafting session."""

import asyncio
from contextvars import ContextVar

import pytest

from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim_common.errors import EngineUnavailableError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt, run


async def test_an_answer_that_is_not_read_to_its_end_is_aborted():
    pools = LocalPools(target={"decode_ms": 600_000})
    stream = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter()).run(
        "r", prompt(), CallState(Request(PrefillOptions(), DecodeOptions()))
    )
    await anext(stream)
    assert pools.target_engine.running == 1
    await stream.aclose()
    assert (pools.target_engine.aborted, pools.target_engine.running) == (1, 0)


@pytest.mark.parametrize("slow", ["speculator", "target"])
async def test_cancelling_a_request_aborts_it_where_it_is(slow):
    latency = {"speculator": {"latency_ms": 600_000}} if slow == "speculator" else {"target": {"prefill_ms": 600_000}}
    pools = LocalPools(**latency)
    engine = getattr(pools, f"{slow}_engine")
    task = asyncio.create_task(run(pools, prompt()))
    await until(lambda: engine.running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.aborted, engine.running) == (1, 0)
    assert len(pools.generates) == (slow == "target")


async def test_a_session_that_no_answer_will_use_is_ended():
    """The client disconnects before the target has begun, so only the router can tell the drafter."""
    pools = LocalPools(target={"prefill_ms": 600_000})
    task = asyncio.create_task(run(pools, prompt()))
    await until(lambda: pools.target_engine.running)
    assert set(pools.speculator_engine.sessions) == {pools.selects[0].request_id}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not pools.speculator_engine.sessions)


class SlowReplies(LocalPools):
    """The speculator has selected, and its reply never arrives. ended: the sessions that the router ended."""

    selected, ended = False, 0

    async def select(self, *args):
        await super().select(*args)
        self.selected = True
        await asyncio.Event().wait()

    async def end_session(self, session):
        self.ended += 1
        await super().end_session(session)


async def test_a_selection_whose_client_leaves_before_the_reply_keeps_no_session():
    pools = SlowReplies()
    task = asyncio.create_task(run(pools, prompt()))
    await until(lambda: pools.selected)
    assert set(pools.speculator_engine.sessions) == {pools.selects[0].request_id}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    assert (pools.ended, pools.speculator_engine.sessions) == (1, {})


async def test_a_selection_that_is_made_but_late_keeps_no_session():
    pools = SlowReplies()
    ran = await run(pools, prompt(), timeout_s=0.05)
    assert (ran.outcome.mode, ran.outcome.reason, pools.selected) == ("dense", "speculator-timeout", True)
    await asyncio.sleep(0.01)
    assert (pools.ended, pools.speculator_engine.sessions) == (1, {})


async def test_a_selection_without_drafts_has_no_session_to_end():
    pools = SlowReplies()
    dispatcher = Dispatcher(
        pools, PrefillOptions(), SpeculationOptions(), RouterConfig(select_timeout_s=0.05), LocalMeter()
    )
    options = PrefillOptions(enabled="always", min_prompt_tokens=256)
    context = CallState(Request(options, DecodeOptions(method="none")))
    async for _ in dispatcher.run("r", prompt(), context):
        pass
    await asyncio.sleep(0.01)
    assert (pools.selected, pools.ended) == (True, 0)


async def test_a_session_of_a_request_that_no_target_took_is_ended():
    pools = LocalPools()
    pools.generate_error = EngineUnavailableError("no free replica")
    with pytest.raises(EngineUnavailableError):
        await run(pools, prompt())
    await until(lambda: not pools.speculator_engine.sessions)


async def test_the_end_of_a_session_is_no_part_of_its_request():
    """Serve marks the calls of a request by a context variable and cancels them with the request."""
    request, pools = ContextVar("request", default=None), LocalPools()
    seen = []

    async def end_session(session):
        seen.append(request.get())

    pools.generate_error, pools.end_session = EngineUnavailableError("no target replica"), end_session
    request.set("cancelled")
    with pytest.raises(EngineUnavailableError):
        await run(pools, prompt())
    await until(lambda: seen)
    assert seen == [None]


async def test_the_session_of_an_answer_that_began_is_the_targets():
    """The session may still be drafting when the router gets the last output. The target tells the drafter."""
    pools = LocalPools()
    await run(pools, prompt())
    await asyncio.sleep(0)
    assert set(pools.speculator_engine.sessions) == {pools.selects[0].request_id}
