"""Calls to pools that are down: no call waits for them, and what still works is used."""

import asyncio

import pytest

from kv_transfer.codec import encode
from router.pools.availability import PoolDownError, PoolStates, Replicas
from skim_common.errors import ModelError
from skim_common.models.info import ModelInfo
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import (
    FOREVER,
    GOOD,
    SELECT,
    SELECTION,
    Reply,
    died,
    serve_pools,
    split_pools,
    texts,
)

SMALL, BIG = (ModelInfo(name, "A", 10, "f", 100, 200, "mock") for name in ("small", "big"))


def down(*pools):
    states = PoolStates(0.0)
    states.note({pool: Replicas(1, 0) for pool in pools})
    return states


async def test_a_selection_does_not_wait_for_a_pool_that_is_down_and_one_call_does():
    reply = Reply(FOREVER)
    pools, _speculator, _ = serve_pools(speculator=[reply], states=down("speculator"))
    with pytest.raises(PoolDownError, match="the speculator pool is down"):
        await pools.select(SELECT)
    await until(lambda: reply.waiting)


async def test_a_selection_that_waits_ends_when_its_pool_goes_down():
    reply, states = Reply(FOREVER), PoolStates(0.0)
    pools, _, _ = serve_pools(speculator=[reply, Reply(FOREVER)], states=states)
    selecting = asyncio.create_task(pools.select(SELECT))
    await until(lambda: reply.waiting)
    states.note({"speculator": Replicas(1, 0)})
    with pytest.raises(PoolDownError):
        await selecting
    assert reply.cancelled


async def test_without_the_target_nothing_is_selected_or_generated():
    pools, speculator, target = serve_pools(
        speculator=[Reply(SELECTION)], target=[Reply(FOREVER)], states=down("target")
    )
    for call in (texts(pools), pools.select(SELECT)):
        with pytest.raises(PoolDownError, match="the target pool is down; try again in a moment"):
            await call
    assert (speculator.payloads, target.payloads) == ([], [])
    await until(lambda: target.replies[0].waiting)


async def test_a_selection_without_an_answer_needs_no_target():
    pools, _, target = serve_pools(speculator=[Reply(SELECTION)], target=[Reply(FOREVER)], states=down("target"))
    assert (await pools.select(SELECT, answers=False)).kept.token_ids.tolist() == [1, 2, 3]
    await asyncio.sleep(0)
    assert not target.replies[0].waiting


async def test_a_pool_that_has_answered_is_used_before_serve_reports_it():
    states = down("speculator")
    pools, _, _ = serve_pools(speculator=[Reply(encode(SMALL)), Reply(SELECTION)], states=states)
    with pytest.raises(PoolDownError):
        await pools.select(SELECT)
    await asyncio.sleep(0.01)
    assert not states.is_down("speculator")
    assert (await pools.select(SELECT)).kept.token_ids.tolist() == [1, 2, 3]


class Late(Reply):
    """Comes from a pool that went down while a request waited for it."""

    def __init__(self, states, pool, *steps):
        super().__init__(*steps)
        self._gone = lambda: states.note({pool: Replicas(1, 0)})

    async def _play(self):
        self._gone()
        self._gone = lambda: None
        return await super()._play()


async def test_a_request_that_waited_tells_that_its_pool_is_back():
    """In the seconds until Serve reports it, the next requests would be refused."""
    states = PoolStates(0.0)
    pools, _, _ = serve_pools(target=[Late(states, "target", *GOOD), Reply(*GOOD)], states=states)
    assert await texts(pools) == ["a", "b"]
    assert await texts(pools) == ["a", "b"]


async def test_a_selection_tells_that_its_pool_is_there():
    now = [0.0]
    states = PoolStates(5.0, lambda: now[0])
    pools, _, _ = serve_pools(speculator=[Late(states, "speculator", SELECTION)], states=states)
    await pools.select(SELECT)
    now[0] = 10.0
    assert not states.is_down("speculator")


async def test_a_pool_that_does_not_answer_stays_down():
    replies = [Reply(died()), Reply(died()), Reply(FOREVER)]
    pools, speculator, _ = serve_pools(speculator=replies, states=down("speculator"))
    for reply in replies:
        while not reply.waiting:
            # A request that comes before the last call has ended makes no call of its own, so another one asks.
            with pytest.raises(PoolDownError):
                await pools.select(SELECT)
            await asyncio.sleep(0.001)
    assert speculator.payloads == []


@pytest.mark.parametrize("pool", ["target", "speculator"])
async def test_requests_that_are_refused_leave_nothing_with_the_call_that_waits(pool):
    """It may wait for minutes."""
    waking = Reply(FOREVER)
    pools, _, _ = serve_pools(**{pool: [waking]}, states=down(pool))
    before = asyncio.all_tasks()
    for _ in range(20):
        with pytest.raises(PoolDownError):
            await pools.select(SELECT)
        await until(lambda: waking.waiting)
    waiting = asyncio.all_tasks() - before
    assert waiting
    assert sum(len(task._callbacks or ()) for task in waiting) < 3


async def test_without_the_prefill_half_the_decoding_half_prefills_at_once():
    pools, _target, prefill = split_pools(target=[Reply(*GOOD)], prefill=[Reply(FOREVER)], states=down("prefill"))
    assert await texts(pools) == ["a", "b"]
    assert prefill.payloads == []


async def test_the_router_starts_without_a_speculator_that_is_down_and_meets_it_later(monkeypatch):
    monkeypatch.setattr("router.pools.serve_pools.MEET_PAUSE_S", 0.0)
    states = down("speculator")
    replies = [Reply(died()), Reply(encode(SMALL)), Reply(SELECTION)]
    pools, _, _ = serve_pools(target=[Reply(encode(BIG))], speculator=replies, states=states)
    await pools.connect()
    assert pools.speculator is None
    assert pools.problem == ("waiting for a replica of the speculator pool; `skim status` says what keeps it", False)
    states.note({"speculator": Replicas(1, 1)})
    with pytest.raises(PoolDownError, match="is not connected yet"):
        await pools.select(SELECT)
    states.note({"speculator": Replicas(1, 0)})
    await until(lambda: pools.speculator)
    assert pools.problem == (None, False)
    assert (await pools.select(SELECT)).kept.token_ids.tolist() == [1, 2, 3]


async def test_a_pool_that_answers_the_router_at_its_start_is_up_before_serve_reports_it():
    """A start that takes longer than the time after which an empty pool is down."""
    replies, states = [Reply(encode(BIG)), Reply(encode(SMALL))], down("target")
    pools, _, _ = serve_pools(target=replies[:1], speculator=replies[1:], states=states)
    await pools.connect()
    assert not states.is_down("target")


async def test_a_prefill_half_that_answers_after_the_start_is_used_before_serve_reports_it():
    states = down("prefill")
    pools, _target, _prefill = split_pools(
        speculator=[Reply(encode(SMALL))], target=[Reply(encode(BIG))], prefill=[Reply(encode(BIG))], states=states
    )
    await pools.connect()
    await until(lambda: not states.is_down("prefill"))


async def test_the_router_starts_without_a_prefill_half_that_is_down():
    waiting, states = Reply(FOREVER), down("prefill")
    pools, _target, _prefill = split_pools(
        speculator=[Reply(encode(SMALL))], target=[Reply(encode(BIG))], prefill=[waiting], states=states
    )
    await pools.connect()
    await until(lambda: waiting.waiting)
    assert states.is_down("prefill")


async def test_a_speculator_that_comes_later_and_does_not_fit_is_never_used(monkeypatch):
    def check_pair(speculator, target):
        raise ModelError("they do not fit")

    monkeypatch.setattr("router.pools.serve_pools.check_pair", check_pair)
    pools, speculator, _ = serve_pools(
        target=[Reply(encode(BIG))], speculator=[Reply(encode(SMALL))], states=down("speculator")
    )
    await pools.connect()
    await until(lambda: pools.problem[1])
    assert pools.problem == ("they do not fit", True)
    with pytest.raises(PoolDownError):
        await pools.select(SELECT)
    assert speculator.payloads == []


async def test_two_models_that_do_not_fit_end_the_start(monkeypatch):
    def check_pair(speculator, target):
        raise ModelError("they do not fit")

    monkeypatch.setattr("router.pools.serve_pools.check_pair", check_pair)
    pools, _, _ = serve_pools(target=[Reply(encode(BIG))], speculator=[Reply(encode(SMALL))])
    with pytest.raises(ModelError):
        await pools.connect()
