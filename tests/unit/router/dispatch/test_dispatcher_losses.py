"""What a dispatcher does and records when target replicas are lost."""

import asyncio

import pytest

from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.migration import DeadlyRequestError, ReplicaLostError
from skim_common.errors import EngineUnavailableError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt, run


class LosingPools(LocalPools):
    """Its target replicas are lost after this many outputs of each attempt, in order; the last one lives."""

    def __init__(self, *lives, cause="died"):
        super().__init__()
        self._lives, self._cause = list(lives), cause

    async def generate(self, request, admitted):
        life = self._lives.pop(0) if self._lives else -1
        async for output in super().generate(request, admitted):
            if life == 0:
                raise ReplicaLostError(self._cause, accepted=True)
            life -= 1
            yield output


def answer_of(ran):
    return [id for output in ran.outputs for completion in output.completions for id in completion.token_ids.tolist()]


def counted(dispatcher, name, **tags):
    return sum(value for value, told in dispatcher.meter.recorded.get(name, ()) if told == tags)


def long_prompt():
    return prompt(sampling={"max_tokens": 12}, max_tokens=12)


def small_dispatcher(pools, **options):
    """A dispatcher, and the context of a request that it selects for."""
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(**options), LocalMeter())
    return dispatcher, CallState(Request(PrefillOptions(min_prompt_tokens=256), DecodeOptions()))


async def test_a_lost_replica_is_seen_in_metrics_and_explain_view_only():
    quiet = await run(LocalPools(), long_prompt())
    ran = await run(LosingPools(5, 3, cause="drained"), long_prompt())
    assert answer_of(ran) == answer_of(quiet)
    assert counted(ran.dispatcher, "skim_router_migrations_total", cause="drained") == 2
    assert counted(ran.dispatcher, "skim_router_replayed_tokens_total") == 5 + 8
    entry = ran.dispatcher.log.get("r").as_json()
    assert entry["migrations"] == [{"cause": "drained", "answered": count} for count in (5, 8)]
    assert "kept_spans" in entry
    assert ran.outcome.timings.keys() == quiet.outcome.timings.keys()


async def test_a_dense_request_gets_an_entry_in_the_explain_view_when_it_moves():
    ran = await run(LosingPools(2), prompt(sampling={"max_tokens": 4, "seed": 3}), enabled=False)
    move = {"cause": "died", "answered": 2}
    assert ran.dispatcher.log.get("r").as_json() == {
        "prompt_tokens": 600,
        "kept_tokens": 600,
        "migrations": [move],
    }


async def test_a_request_that_is_given_up_ends_its_session_and_is_counted():
    pools = LosingPools(3, 0)
    dispatcher, context = small_dispatcher(pools)
    with pytest.raises(DeadlyRequestError, match="two target replicas died"):
        _ = [output async for output in dispatcher.run("r", long_prompt(), context)]
    assert counted(dispatcher, "skim_router_given_up_total") == 1
    await until(lambda: not pools.speculator_engine.sessions)


async def test_a_client_that_leaves_while_no_replica_has_its_request_ends_the_session():
    reached = asyncio.Event()

    class Stuck(LosingPools):
        async def generate(self, request, admitted):
            if request.answered:
                reached.set()
                await asyncio.Event().wait()
            async for output in super().generate(request, admitted):
                yield output

    pools = Stuck(3)
    task = asyncio.create_task(run(pools, long_prompt()))
    await until(reached.is_set)
    assert pools.speculator_engine.sessions
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not pools.speculator_engine.sessions)


async def test_without_migration_a_lost_replica_ends_the_answer():
    pools = LosingPools(3)
    dispatcher, context = small_dispatcher(pools, migration=False)
    with pytest.raises(EngineUnavailableError, match="died during its answer"):
        _ = [output async for output in dispatcher.run("r", long_prompt(), context)]
    assert len(pools.generates) == 1
    assert counted(dispatcher, "skim_router_given_up_total") == 1
