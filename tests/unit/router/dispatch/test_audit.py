"""The audit: which answers are compared with a dense one, what is recorded, and that it never harms a client."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import numpy as np
import pytest

from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from router.decision.forecaster import Forecaster
from router.dispatch.audit import LOWEST_PRIORITY, MAX_RUNNING, MAX_TOKENS
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.answer_record import AnswerRecord
from router.pools.interface import unwatched
from skim_common.errors import EngineUnavailableError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt as one_prompt

IDS = [7 + i % 900 for i in range(600)]
GREEDY = {"max_tokens": 4, "temperature": 0.0}


def auditing(pools, share=1.0, max_ongoing=4):
    return Dispatcher(
        pools,
        PrefillOptions(),
        SpeculationOptions(),
        RouterConfig(audit_share=share, audit_max_ongoing=max_ongoing),
        LocalMeter(),
    )


def stream(dispatcher, name="r", sampling=GREEDY, **options):
    dispatcher.forecaster = Forecaster()  # without measurements, `auto` compresses
    context = CallState(Request(PrefillOptions(**{"min_prompt_tokens": 256, **options}), DecodeOptions()))
    prompt = one_prompt(IDS, sampling=sampling, max_tokens=sampling["max_tokens"], cache_salt="salt")
    return dispatcher.run(name, prompt, context)


async def answered(dispatcher, **request):
    async for _ in stream(dispatcher, **request):
        pass
    await until(lambda: not dispatcher.audits._running)


def outcomes(dispatcher):
    return [tags["outcome"] for _, tags in dispatcher.meter.recorded.get("skim_router_audits_total", [])]


def audits(pools):
    return [request for request in pools.generates if request.request_id.endswith("-audit")]


async def test_a_compressed_answer_is_compared_with_a_dense_one():
    pools = LocalPools()
    dispatcher = auditing(pools)
    await answered(dispatcher)
    client, audit = pools.generates
    assert not client.prompt.is_dense
    assert audit.prompt.is_dense
    assert audit.prompt.token_ids.tolist() == IDS
    assert (audit.priority, audit.cache_salt, audit.decode.method) == (LOWEST_PRIORITY, "salt", "none")
    assert audit.prompt.session is None
    [(overlap, _)] = dispatcher.meter.recorded["skim_router_audit_agreement"]
    assert 0 <= overlap <= 1
    assert outcomes(dispatcher) in (["agrees"], ["differs"])
    # An audit is no client's request.
    assert len(dispatcher.meter.recorded["skim_router_requests_total"]) == 1


@pytest.mark.parametrize(("other", "outcome"), [(False, "agrees"), (True, "differs")])
async def test_agreement_is_measured_on_the_answers(monkeypatch, other, outcome):
    """Negative control: another dense answer is seen."""
    pools = LocalPools()
    whole = pools.generate

    async def generate(request, admitted=unwatched):
        """Both requests get the mock's answer to the kept prompt; with `other`, the dense one another."""
        dense = request.prompt.is_dense
        async for output in whole(request):
            for completion in output.completions:
                completion.token_ids[:] = 11 if dense and other else 22
            yield output

    monkeypatch.setattr(pools, "generate", generate)
    dispatcher = auditing(pools)
    await answered(dispatcher)
    assert outcomes(dispatcher) == [outcome]


@pytest.mark.parametrize(
    "request_",
    [
        {"enabled": False},
        {"enabled": "always"},
        {"keep_rate": 1.0},
        {"sampling": {"max_tokens": 4}},
        {"sampling": {**GREEDY, "temperature": 0.7, "seed": 5}},
        {"sampling": {**GREEDY, "n": 2}},
    ],
    ids=["dense", "an explicit wish", "nothing dropped", "sampled", "sampled with a seed", "several answers"],
)
async def test_other_requests_are_not_audited(request_):
    pools = LocalPools()
    dispatcher = auditing(pools)
    await answered(dispatcher, **request_)
    assert audits(pools) == []
    assert outcomes(dispatcher) == []


async def test_only_the_configured_share_is_audited(monkeypatch):
    pools = LocalPools()
    dispatcher = auditing(pools, share=0.25)
    numbers = iter([0.1, 0.25, 0.9, 0.2])
    monkeypatch.setattr(dispatcher.audits, "_chance", lambda: next(numbers))
    for name in "abcd":
        await answered(dispatcher, name=name)
    assert [request.request_id[0] for request in audits(pools)] == ["a", "d"]
    off = auditing(pools, share=0.0)
    await answered(off)
    assert len(audits(pools)) == 2


async def test_an_answer_that_the_client_left_is_not_audited():
    pools = LocalPools()
    dispatcher = auditing(pools)
    outputs = stream(dispatcher)
    await anext(outputs)
    await outputs.aclose()
    assert audits(pools) == []


async def test_an_audit_computes_a_bounded_answer():
    pools = LocalPools()
    sampling = {**GREEDY, "max_tokens": 500, "min_tokens": 300, "logprobs": 2}
    await answered(auditing(pools), sampling=sampling)
    [audit] = audits(pools)
    assert audit.sampling["max_tokens"] == audit.sampling["min_tokens"] == MAX_TOKENS
    assert "logprobs" not in audit.sampling


async def test_an_audit_that_fails_harms_nobody():
    pools = LocalPools()
    dispatcher = auditing(pools)
    whole = pools.generate

    async def generate(request, admitted=unwatched):
        if request.request_id.endswith("-audit"):
            raise EngineUnavailableError("full")
        async for output in whole(request):
            yield output

    pools.generate = generate
    await answered(dispatcher)
    assert outcomes(dispatcher) == ["failed"]


class StalledAudits(LocalPools):
    """Pools whose audits begin and never end by themselves."""

    def __init__(self):
        super().__init__()
        self.audited = 0
        self.cancelled = 0

    async def generate(self, request, admitted=unwatched):
        if request.request_id.endswith("-audit"):
            self.audited += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        async for output in super().generate(request, admitted):
            yield output


async def test_the_client_does_not_wait_for_the_audit():
    pools = StalledAudits()
    dispatcher = auditing(pools)
    async for _ in stream(dispatcher):
        pass
    await until(lambda: pools.audited == 1)
    async with asyncio.timeout(10):
        async for _ in stream(dispatcher, "another"):
            pass
    dispatcher.audits.drop()


@pytest.mark.parametrize(("waiting", "outcome"), [(3, ["dropped"]), (2, [])])
async def test_no_audit_begins_under_load(waiting, outcome):
    """With `max_ongoing` 2: one finished request, and others that are still at the target."""
    pools = StalledAudits()
    dispatcher = auditing(pools, max_ongoing=2)
    async with AsyncExitStack() as stack:
        for index in range(waiting):
            outputs = await stack.enter_async_context(aclosing(stream(dispatcher, f"w{index}", enabled="always")))
            await anext(outputs)
        dispatcher.audits.begin(pools, *await finished(dispatcher))
        assert outcomes(dispatcher) == outcome
        assert bool(dispatcher.audits._running) == (outcome == [])
    dispatcher.audits.drop()


async def finished(dispatcher):
    """Prompt and record of a suitable answer, made without the dispatcher's count of requests."""
    ids = np.array(IDS, np.int32)
    record = AnswerRecord(GenerateRequest("r", KeptPrompt(ids[:9], np.arange(9, dtype=np.int32), ids.size), GREEDY))
    async for output in LocalPools().generate(record.asked):
        record.add(output)
    return ids, record


async def test_load_ends_the_audits_that_run():
    pools = StalledAudits()
    dispatcher = auditing(pools, max_ongoing=1)
    async for _ in stream(dispatcher):
        pass
    await until(lambda: pools.audited == 1)
    first, second = stream(dispatcher, "a", enabled="always"), stream(dispatcher, "b", enabled="always")
    await anext(first)
    assert pools.cancelled == 0
    await anext(second)
    await until(lambda: pools.cancelled == 1)
    await until(lambda: outcomes(dispatcher) == ["dropped"])
    await first.aclose()
    await second.aclose()


async def test_a_router_has_few_audits_at_a_time():
    pools = StalledAudits()
    dispatcher = auditing(pools)
    for index in range(MAX_RUNNING + 1):
        async for _ in stream(dispatcher, f"r{index}"):
            pass
    assert len(dispatcher.audits._running) == MAX_RUNNING
    assert outcomes(dispatcher) == ["dropped"]
    dispatcher.audits.drop()
