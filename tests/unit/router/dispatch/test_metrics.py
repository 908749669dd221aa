"""The metrics that the router records for a dense prompt, for a speculative one, and after a pool has failed."""

import asyncio

import pytest

from kv_transfer.messages import FINAL_ONLY
from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.headers import TIMING_PARTS, TOTAL
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim_common.errors import EngineUnavailableError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt

PROMPT = prompt(sampling={"max_tokens": 2}, max_tokens=2)
DEFAULTS = {"enabled": "always", "min_prompt_tokens": 256, "keep_rate": 0.25}


async def recorded(pools: LocalPools, **options: object) -> LocalMeter:
    meter = LocalMeter()
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), meter)
    context = CallState(Request(PrefillOptions(**{**DEFAULTS, **options}), DecodeOptions()))
    async for _ in dispatcher.run("r", PROMPT, context):
        pass
    return meter


def parts(meter: LocalMeter, mode: str) -> dict[str, float]:
    times = meter.recorded["skim_router_ttft_seconds"]
    assert {tags["mode"] for _, tags in times} == {mode}
    return {tags["part"]: seconds for seconds, tags in times}


async def test_a_speculative_prompt_is_counted_once_with_all_its_parts() -> None:
    meter = await recorded(LocalPools())
    assert meter.recorded["skim_router_requests_total"] == [(1, {"mode": "speculative", "reason": "requested"})]
    assert meter.recorded["skim_router_prompt_tokens_total"] == [(600, {"mode": "speculative"})]
    assert meter.recorded["skim_router_kept_tokens_total"] == [(193, {"mode": "speculative"})]
    assert meter.recorded["skim_router_keep_rate"] == [(pytest.approx(193 / 600), {})]
    [(coverage, _)] = meter.recorded["skim_router_coverage"]
    assert 0 < coverage < 1
    times = parts(meter, "speculative")
    assert times.keys() == {*TIMING_PARTS, TOTAL}
    assert sum(times[part] for part in TIMING_PARTS) <= times[TOTAL]


async def test_a_dense_prompt_keeps_nothing_to_speak_of() -> None:
    meter = await recorded(LocalPools(), enabled=False)
    assert meter.recorded["skim_router_requests_total"] == [(1, {"mode": "dense", "reason": "disabled"})]
    assert "skim_router_keep_rate" not in meter.recorded
    assert not {"speculate", "select"} & parts(meter, "dense").keys()


async def test_the_times_of_an_answer_in_one_piece_end_with_its_first_token() -> None:
    """Its client gets nothing before the last one, which never comes here."""
    meter, pools = LocalMeter(), LocalPools(target={"decode_ms": 600_000})
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), meter)
    call = CallState(Request(PrefillOptions(**DEFAULTS), DecodeOptions()))
    sampling = {"max_tokens": 2, "output_kind": FINAL_ONLY}
    outputs = dispatcher.run("r", prompt(sampling=sampling, max_tokens=2), call)
    answer = asyncio.create_task(anext(outputs))
    await until(lambda: "skim_router_ttft_seconds" in meter.recorded)
    times = parts(meter, "speculative")
    assert times.keys() == {*TIMING_PARTS, TOTAL}
    assert f"total;dur={1e3 * times[TOTAL]:.2f}" in dict(call.headers())["server-timing"]
    answer.cancel()
    await asyncio.wait([answer])


async def test_the_tokens_that_the_target_had_cached_are_counted() -> None:
    pools = LocalPools(target={"cache_tokens": 4096, "block_size": 16})
    first, second = [await recorded(pools, enabled=False) for _ in range(2)]
    assert first.recorded["skim_router_cached_tokens_total"] == [(0, {"mode": "dense"})]
    assert second.recorded["skim_router_cached_tokens_total"] == [(592, {"mode": "dense"})]
    assert second.recorded["skim_router_kept_tokens_total"] == [(600, {"mode": "dense"})]


async def test_a_fallback_is_a_dense_prompt_with_its_reason() -> None:
    pools = LocalPools()
    pools.select_error = EngineUnavailableError("gone")
    meter = await recorded(pools)
    assert meter.recorded["skim_router_requests_total"] == [(1, {"mode": "dense", "reason": "speculator-error"})]


async def test_what_never_answers_has_no_time_to_first_token() -> None:
    pools = LocalPools()
    pools.generate_error = EngineUnavailableError("gone")
    meter = LocalMeter()
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), meter)
    with pytest.raises(EngineUnavailableError):
        async for _ in dispatcher.run("r", PROMPT, CallState(Request(PrefillOptions(), DecodeOptions()))):
            pass
    assert "skim_router_requests_total" in meter.recorded
    assert "skim_router_ttft_seconds" not in meter.recorded
