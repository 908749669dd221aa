"""Calls to the speculator pool through Serve handles, and what happens to the target pool meanwhile."""

import asyncio
import gc
import weakref
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, TaskCancelledError
from ray.serve.exceptions import BackPressureError

from kv_transfer.codec import encode, encode_error
from kv_transfer.messages import ACCEPTED
from router.pools.availability import PoolStates
from router.pools.serve_pools import ServePools
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import (
    FOREVER,
    SELECT,
    SELECTION,
    Handle,
    Reply,
    died,
    serve_pools,
)


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
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.0)
    halves = Handle(Reply(died()), Reply(FOREVER)), Handle(Reply(FOREVER), Reply(FOREVER))
    pools = ServePools(Handle(Reply(FOREVER), Reply(FOREVER)), halves[0], 60.0, PoolStates(60.0), halves[1])
    selecting = [asyncio.create_task(pools.select(SELECT)) for _ in range(2)]
    await until(lambda: all(handle.replies[0].waiting for handle in halves))
    await asyncio.sleep(0.01)
    for task in selecting:
        task.cancel()
    await asyncio.wait(selecting)
    assert not any(handle.replies[1].waiting for handle in halves)


async def test_waking_the_target_is_no_part_of_the_request_that_waited_first(monkeypatch):
    """Serve marks the calls of a request by a context variable and cancels them with the request."""
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.0)
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


@pytest.mark.parametrize(
    ("info", "takes_requests"), [(ACCEPTED, True), (died(), False), (BackPressureError(1, 1), False), (FOREVER, False)]
)
async def test_a_selection_is_admitted_if_the_target_answers_meanwhile(monkeypatch, info, takes_requests):
    """Only then is a later 503 unlikely. The two selections share one question."""
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.0)
    speculator = [Reply(FOREVER), Reply(FOREVER)]
    pools, _, target = serve_pools(speculator=speculator, target=[Reply(info)])
    admitted = [asyncio.Event(), asyncio.Event()]
    selecting = [asyncio.create_task(pools.select(SELECT, event.set)) for event in admitted]
    await until(lambda: target.replies[0].waiting and all(reply.waiting for reply in speculator))
    await asyncio.sleep(0.01)
    assert [event.is_set() for event in admitted] == [takes_requests] * 2
    for task in selecting:
        task.cancel()
    await asyncio.wait(selecting)


async def test_a_selection_that_ends_is_not_told_of_a_target_that_wakes_later(monkeypatch):
    """Starting a pool takes minutes: until then requests that have ended would fill the memory."""
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.0)
    pools, _, target = serve_pools(speculator=[Reply(FOREVER)], target=[Reply(FOREVER)])
    wish = asyncio.Event()
    gone, before = weakref.ref(wish), asyncio.all_tasks()
    selecting = asyncio.create_task(pools.select(SELECT, wish.set))
    await until(lambda: target.replies[0].waiting)
    selecting.cancel()
    await asyncio.wait([selecting])
    assert asyncio.all_tasks() - before, "the call that wakes still waits"
    del wish, selecting
    gc.collect()
    assert gone() is None


async def test_a_selection_that_is_quick_wakes_nobody(monkeypatch):
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.01)
    pools, _, target = serve_pools(speculator=[Reply(SELECTION)], target=[Reply(FOREVER)])
    await pools.select(SELECT)
    await asyncio.sleep(0.02)
    assert not target.replies[0].waiting


async def test_a_selection_without_an_answer_wakes_nobody(monkeypatch):
    monkeypatch.setattr("router.pools.serve_pools.WAKE_AFTER_S", 0.0)
    pools, speculator, target = serve_pools(
        speculator=[Reply(FOREVER), Reply(FOREVER)], target=[Reply(FOREVER), Reply(FOREVER)]
    )
    alone = asyncio.create_task(pools.select(SELECT, answers=False))
    await until(lambda: speculator.replies[0].waiting)
    await asyncio.sleep(0.02)
    assert not target.replies[0].waiting
    answered = asyncio.create_task(pools.select(SELECT))
    await until(lambda: target.replies[0].waiting)
    for task in (alone, answered):
        task.cancel()
    await asyncio.wait((alone, answered))


@pytest.mark.parametrize("failure", [ActorDiedError(), BackPressureError(1, 1), TaskCancelledError()])
async def test_a_selection_that_fails_says_so(failure):
    pools, _, _ = serve_pools(speculator=[Reply(failure)])
    with pytest.raises(EngineUnavailableError, match="the speculator pool did not answer"):
        await pools.select(SELECT)


async def test_an_error_of_the_speculator_is_raised_again():
    pools, _, _ = serve_pools(speculator=[Reply(encode_error(InvalidRequestError("bad id")))])
    with pytest.raises(InvalidRequestError, match="bad id"):
        await pools.select(SELECT)
