"""The dispatcher behind an admission: a refused prompt touches no engine, and a loaded router leaves things out."""

import asyncio
import json

import pytest

from kv_transfer.options import AUTO, DecodeOptions
from router.admission.controller import Admission
from router.admission.ticket import KEEP, AdmissionRequest, OverloadedError
from router.decision.forecast import Forecaster
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.errors import HttpError
from router.options.request import PREFILL, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asgi_calls import caller, middleware
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt
from tests.unit.router.http.test_middleware import Call, Recorder

FOREVER_MS = 600_000
DEFAULTS = PrefillOptions(min_prompt_tokens=256)


class Loaded(Admission):
    """An admission whose pools have a queue that is `share` of the longest one."""

    share = 0.0

    def _accept(self, request, work, less):
        ticket = super()._accept(request, work, less)
        ticket.load, ticket.keeps_less = self.share, less is not None and self.share >= KEEP
        return ticket


def dispatcher_of(pools, **limits):
    meter = LocalMeter()
    return Dispatcher(pools, DEFAULTS, SpeculationOptions(), RouterConfig(), meter, admission=Loaded(meter, **limits))


def context(given=None, wishes_decode=False, key=""):
    options = PREFILL.resolve(DEFAULTS, None, given)
    who = caller(key) if key else None
    return CallState(Request(options, DecodeOptions(), decode_is_explicit=wishes_decode, caller=who))


async def collect(dispatcher, asked):
    return [output async for output in dispatcher.run("r", prompt(), asked)]


async def test_a_refused_prompt_touches_no_engine():
    pools = LocalPools(target={"prefill_ms": FOREVER_MS})
    dispatcher = dispatcher_of(pools, most=1)
    first = asyncio.create_task(collect(dispatcher, context()))
    await until(lambda: pools.target_engine.running)
    with pytest.raises(OverloadedError) as caught:
        await collect(dispatcher, context())
    assert (len(pools.selects), len(pools.generates)) == (1, 1)
    error = HttpError.of(caught.value)
    assert (error.status, error.type, int(error.headers["retry-after"]) >= 1) == (429, "RateLimitError", True)
    assert dispatcher.meter.recorded["skim_router_refused_total"] == [(1, {"reason": "full"})]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert dispatcher.admission._ongoing == 0


@pytest.mark.parametrize(("share", "rate", "shed"), [(0.7, AUTO, ""), (0.8, 0.05, "keep")])
async def test_a_loaded_router_keeps_less(share, rate, shed):
    pools = LocalPools()
    dispatcher = dispatcher_of(pools)
    dispatcher.admission.share = share
    await collect(dispatcher, asked := context())
    assert pools.generates[0].decode.method == "remote"
    assert pools.selects[0].options.keep_rate == rate
    assert dict(asked.headers())["x-skim-reason"] == ("unmeasured" + (f";shed={shed}" if shed else ""))
    assert [tags["kind"] for _, tags in dispatcher.meter.recorded.get("skim_router_shed_total", [])] == [shed][
        : bool(shed)
    ]


@pytest.mark.parametrize("given", [{"keep_rate": 0.3}, {"max_keep": 0.2}, "always"])
async def test_an_explicit_wish_is_obeyed(given):
    pools = LocalPools()
    dispatcher = dispatcher_of(pools)
    dispatcher.admission.share = 0.9
    await collect(dispatcher, asked := context(given, wishes_decode=True))
    assert pools.selects[0].options.keep_rate == asked.request.options.keep_rate
    assert "shed" not in asked.prompts[0].notes


@pytest.mark.parametrize("given", [{"min_keep": 0.2}, {"min_keep": 0.2, "keep_rate": "auto"}])
async def test_a_floor_bounds_what_a_loaded_router_leaves_out(given):
    pools = LocalPools()
    dispatcher = dispatcher_of(pools)
    dispatcher.admission.share = 0.9
    await collect(dispatcher, context(given))
    assert pools.selects[0].options.keep_rate == 0.2


async def test_the_target_s_work_is_known_again_when_a_selection_fails():
    pools = LocalPools()
    dispatcher = dispatcher_of(pools)
    pools.select_error = OSError("not ours")
    with pytest.raises(OSError, match="not ours"):
        await collect(dispatcher, context())
    pools.select_error = None
    await collect(dispatcher, context())
    for pool in (dispatcher.admission._speculator, dispatcher.admission._target):
        assert (pool.requests, pool.ahead_ms) == (0, 0.0)


class Refusing:
    """An admission that refuses all that may not be important."""

    def refuse_early(self, request: AdmissionRequest) -> None:
        raise OverloadedError("full", "no room", 7)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {}, 429),
        ("/v1/completions", {}, 429),
        ("/v1/responses", {}, 429),
        ("/v1/messages", {}, 429),
        ("/tokenize", {}, 200),
        ("/v1/completions", {"priority": -1}, 200),
    ],
)
async def test_what_is_refused_in_any_case_is_not_even_parsed(path, body, status):
    app = Recorder()
    call = Call(app, (json.dumps(body).encode(),))
    call._scope["path"] = path
    call._app = middleware(app, admission=Refusing())
    await call.run()
    assert call.status == status
    assert call.headers.get("retry-after") == ("7" if status == 429 else None)
    assert hasattr(app, "received") == (status == 200)


@pytest.mark.parametrize(("who", "asked"), [(None, ("", 1.0)), (caller("team", share=4.0), ("team", 4.0))])
async def test_the_queue_learns_whose_prompt_it_is_and_the_weight_of_its_key(who, asked):
    dispatcher, seen = dispatcher_of(LocalPools()), []
    accept = dispatcher.admission._accept
    dispatcher.admission._accept = lambda request, *work: seen.append(request) or accept(request, *work)
    request = Request(PREFILL.resolve(DEFAULTS, None, None), DecodeOptions(), caller=who)
    await collect(dispatcher, CallState(request))
    assert [(one.key, one.share) for one in seen] == [asked]


@pytest.mark.parametrize(
    ("max_tokens", "context", "method", "reads"),
    [
        (4, "kept", "remote", True),
        (3, "kept", "remote", False),
        (4, "full", "remote", False),
        (4, "kept", "none", False),
    ],
)
async def test_the_read_for_drafts_is_asked_for_with_the_prompt(monkeypatch, max_tokens, context, method, reads):
    asked, work = [], Forecaster.work

    def noted(self, *args, reads_for_drafts=False, **options):
        asked.append(reads_for_drafts)
        return work(self, *args, reads_for_drafts=reads_for_drafts, **options)

    monkeypatch.setattr(Forecaster, "work", noted)
    pools = LocalPools()
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    decode = DecodeOptions(method=method, draft_context=context)
    call = CallState(Request(PrefillOptions(enabled="always", min_prompt_tokens=256), decode))
    async for _ in dispatcher.run("r", prompt(max_tokens=max_tokens), call):
        pass
    assert (True in asked) == reads
