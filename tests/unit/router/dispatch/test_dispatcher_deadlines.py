"""The dispatcher at a request's deadline: the work is stopped at every hop, and each hop is told the time left."""

import pytest

from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.errors import HttpError
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim_common.deadline import Deadline
from skim_common.errors import DeadlineError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import prompt

FOREVER_MS = 600_000


async def stopped(pools, timeout_ms):
    """The context and the meter of a prompt that misses its deadline, and the outputs before."""
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    options = PrefillOptions(enabled="always", min_prompt_tokens=256)
    context = CallState(Request(options, DecodeOptions(), deadline=Deadline.after(timeout_ms)))
    outputs = []

    async def collect():
        async for output in dispatcher.run("r", prompt(), context):
            outputs.append(output)

    with pytest.raises(DeadlineError) as caught:
        await collect()
    assert HttpError.of(caught.value).status == 504
    [(_, tags)] = dispatcher.meter.recorded["skim_router_deadlines_missed_total"]
    return outputs, tags["answering"]


async def test_in_the_speculator():
    """A missed deadline is no failed selection: the prompt does not run dense."""
    pools = LocalPools(speculator={"latency_ms": FOREVER_MS})
    assert await stopped(pools, 20) == ([], "false")
    assert (pools.speculator_engine.running, pools.speculator_engine.aborted) == (0, 1)
    assert pools.generates == []


async def test_in_the_target_s_prefill():
    pools = LocalPools(target={"prefill_ms": FOREVER_MS})
    assert await stopped(pools, 1000) == ([], "false")
    assert (pools.target_engine.running, pools.target_engine.aborted) == (0, 1)


async def test_while_answering():
    pools = LocalPools(target={"decode_ms": FOREVER_MS})
    outputs, answering = await stopped(pools, 1000)
    assert (len(outputs), answering) == (1, "true")
    assert pools.target_engine.running == 0


async def test_before_any_work():
    pools = LocalPools()
    assert await stopped(pools, 0) == ([], "false")
    assert (pools.selects, pools.generates) == ([], [])


@pytest.mark.parametrize("timeout_ms", [None, FOREVER_MS])
async def test_each_hop_is_told_the_time_that_is_left(timeout_ms):
    pools = LocalPools()
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    options = PrefillOptions(enabled="always", min_prompt_tokens=256)
    context = CallState(Request(options, DecodeOptions(), deadline=Deadline.after(timeout_ms)))
    assert [output async for output in dispatcher.run("r", prompt(), context)][-1].finished
    told = [pools.selects[0].envelope.timeout_ms, pools.generates[0].envelope.timeout_ms]
    if timeout_ms is None:
        assert told == [None, None]
    else:
        assert timeout_ms > told[0] > told[1] > 0
    assert "skim_router_deadlines_missed_total" not in dispatcher.meter.recorded
