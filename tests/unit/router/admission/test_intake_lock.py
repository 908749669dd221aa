"""`router.admission.intake_lock`: requests are taken in one after the other."""

import asyncio

import pytest

from kv_transfer.options import DecodeOptions
from router.admission.intake_lock import IntakeLock
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CURRENT, CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim_common.errors import InvalidRequestError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asgi_calls import Call, middleware
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import prompt

LONG_S = 3600.0


async def turns(count=3):
    """Let all tasks run as far as they can."""
    for _ in range(count * 4):
        await asyncio.sleep(0)


async def test_the_next_request_waits_until_the_one_before_leaves():
    intake, entered = IntakeLock(LONG_S), []

    async def enter(name):
        leave = await intake.enter()
        entered.append(name)
        return leave

    tasks = [asyncio.create_task(enter(name)) for name in "abc"]
    await turns()
    assert (entered, intake.waiting) == (["a"], 2)
    (await tasks[0])()
    await turns()
    assert (entered, intake.waiting) == (["a", "b"], 1)
    (await tasks[1])()
    (await tasks[2])()
    assert (entered, intake.waiting) == (["a", "b", "c"], 0)


async def test_leaving_twice_lets_one_request_in():
    intake = IntakeLock(LONG_S)
    leave = await intake.enter()
    waiting = [asyncio.create_task(intake.enter()) for _ in range(2)]
    await turns()
    leave()
    leave()
    await turns()
    leave()
    await turns()
    assert [task.done() for task in waiting] == [True, False]
    for task in waiting:
        (await task)()


async def test_a_request_that_takes_long_lets_the_next_one_in():
    intake = IntakeLock(0.01)
    leave = await intake.enter()
    (await asyncio.wait_for(intake.enter(), 10))()
    leave()
    assert not intake.waiting


async def test_a_request_that_is_cancelled_while_it_waits_keeps_nobody_out():
    intake = IntakeLock(LONG_S)
    leave = await intake.enter()
    gone, next_one = (asyncio.create_task(intake.enter()) for _ in range(2))
    await turns()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert intake.waiting == 1
    leave()
    (await next_one)()
    assert not intake.waiting


async def test_a_prompt_leaves_the_intake_before_a_pool_is_asked():
    pools, left = LocalPools(), []
    context = CallState(
        Request(PrefillOptions(enabled="always", min_prompt_tokens=256), DecodeOptions()),
        release_intake=lambda: left.append(len(pools.selects)),
    )
    dispatcher = Dispatcher(
        pools, PrefillOptions(), SpeculationOptions(), RouterConfig(select_timeout_s=5.0), LocalMeter()
    )
    async for _ in dispatcher.run("r", prompt(), context):
        pass
    assert (left, len(pools.selects)) == ([0], 1)


def app_that(act):
    async def app(scope, receive, send):
        await receive()
        act(CURRENT.get())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    return app


def fails(context):
    raise InvalidRequestError("no")


@pytest.mark.parametrize("body", [b"{}", b'{"speculative_prefill": {"keep_rate": 7}}', b"no json"])
@pytest.mark.parametrize("act", [lambda context: context.release_intake(), lambda context: None, fails])
async def test_every_request_leaves_the_intake_however_it_ends(act, body):
    intake = IntakeLock(LONG_S)
    call = Call(None, (body,))
    call._app = middleware(app_that(act), intake=intake)
    await asyncio.gather(call.run(), return_exceptions=True)
    (await asyncio.wait_for(intake.enter(), 10))()


async def test_the_app_runs_one_request_until_it_leaves_the_intake():
    intake, all_seen, go_on = IntakeLock(LONG_S), asyncio.Event(), asyncio.Event()
    running = most = seen = 0

    async def app(scope, receive, send):
        nonlocal running, most, seen
        seen += 1
        running += 1
        most = max(most, running)
        await turns()
        running -= 1
        if seen == 4:
            all_seen.set()
        CURRENT.get().release_intake()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    shared = middleware(app, intake=intake)
    calls = [Call(None) for _ in range(4)]
    for call in calls:
        call._app = shared
    tasks = [asyncio.create_task(call.run()) for call in calls]
    await asyncio.wait_for(all_seen.wait(), 10)
    assert most == 1
    go_on.set()
    assert [call.status for call in await asyncio.gather(*tasks)] == [200] * 4
