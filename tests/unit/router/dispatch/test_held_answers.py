"""A client that hangs up finds its answer when it asks again: what the target has made of it is not made twice."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from kv_transfer.messages import ADAPTER
from kv_transfer.options import DecodeOptions
from kv_transfer.sampling import CUMULATIVE, DELTA, FINAL_ONLY
from router.admission.controller import Admission
from router.admission.rate_limits import Caller
from router.admission.ticket import OverloadedError
from router.dispatch import held_answers
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.errors import HttpError
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import unwatched
from skim_common.deadline import Deadline
from skim_common.errors import DeadlineError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asgi_calls import caller
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import IDS, prompt

SIZE = 40
PAUSE = 17
"""The first token and a message of the next ones (`router.pools.answer_record.STREAM_INTERVAL`)."""
ALWAYS, DENSE = PrefillOptions(enabled="always", min_prompt_tokens=256), PrefillOptions(enabled=False)


class Pools(LocalPools):
    """The target makes the first PAUSE tokens of an answer, and the others once `go` is set.

    made: the tokens that the router got of each request to the target.
    """

    def __init__(self, cache_tokens=10**6, speculator=None):
        super().__init__(speculator, {"cache_tokens": cache_tokens})
        self.go, self.made = asyncio.Event(), []

    @property
    def of_clients(self):
        """The numbers of those requests to the target that a client waits for."""
        return [number for number, request in enumerate(self.generates) if not request.request_id.endswith("-held")]

    async def generate(self, request, admitted=unwatched):
        number, have = len(self.made), request.answered
        self.made.append(0)
        async with aclosing(super().generate(request, admitted)) as outputs:
            async for output in outputs:
                if have >= PAUSE:
                    await self.go.wait()
                [new] = {completion.token_ids.size for completion in output.completions}
                have, self.made[number] = have + new, self.made[number] + new
                yield output


class Loaded(Admission):
    """share: the load that every prompt finds."""

    share = 0.0

    def _accept(self, request, work, less):
        ticket = super()._accept(request, work, less)
        ticket.load = self.share
        return ticket

    def load(self):
        return self.share


DISPATCHERS = []


@pytest.fixture(autouse=True)
async def ended():
    """What still goes on at the end of a test ends with it."""
    yield
    while DISPATCHERS:
        background = DISPATCHERS.pop().background
        background.cancel()
        await until(lambda background=background: not len(background))


def a_dispatcher(pools, settings=None, **limits):
    meter = LocalMeter()
    admission = Loaded(meter, **limits)
    settings = settings or RouterConfig()
    DISPATCHERS.append(Dispatcher(pools, PrefillOptions(), SpeculationOptions(), settings, meter, admission=admission))
    return DISPATCHERS[-1]


def asks(ids=IDS, cache_salt=None, priority=0, engine_args=None, **sampling):
    sampling = {"max_tokens": SIZE, "output_kind": FINAL_ONLY, **sampling}
    args = {"cache_salt": cache_salt, "priority": priority, "engine_args": engine_args or {}}
    return prompt(ids, sampling=sampling, max_tokens=sampling["max_tokens"], **args)


def a_call(options=ALWAYS, **fields):
    return CallState(Request(options, DecodeOptions(), **fields))


async def answer(dispatcher, asked=None, call=None, name="r"):
    """The whole answer's token ids."""
    outputs = [o async for o in dispatcher.run(name, asked or asks(), call or a_call())]
    assert outputs[-1].finished
    return np.concatenate([output.completions[0].token_ids for output in outputs]).tolist()


async def expected(asked=None, call=None):
    """The answer of a client that waits for it."""
    pools = Pools()
    pools.go.set()
    return await answer(a_dispatcher(pools), asked, call)


async def hung_up(dispatcher, asked=None, call=None):
    """A client asks, and hangs up when the target has made what it makes before `go`."""
    pools = dispatcher.pools
    before, task = len(pools.of_clients), asyncio.create_task(answer(dispatcher, asked, call))

    def has_begun():
        begun = pools.of_clients[before:]
        return begun and pools.generates[begun[0]].answered + pools.made[begun[0]] >= PAUSE

    await until(has_begun)
    await cancelled(task)


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def held(dispatcher):
    return dispatcher.held_answers._held


def counted(dispatcher):
    recorded = dispatcher.meter.recorded.get("skim_router_held_answers_total", [])
    return [tags["outcome"] for _, tags in recorded]


def begins(pools):
    """With how many tokens of its answer each request to the target began."""
    return [request.answered for request in pools.generates]


@pytest.mark.parametrize("options", [ALWAYS, DENSE], ids=["speculative", "dense"])
async def test_asked_again_while_it_goes_on(options):
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher, call=a_call(options))
    await until(lambda: pools.target_engine.running)
    again = asyncio.create_task(answer(dispatcher, call=(call := a_call(options)), name="second"))
    await until(lambda: len(pools.generates) == 3)
    pools.go.set()
    assert await again == await expected(call=a_call(options))
    assert (begins(pools), sum(pools.made)) == ([0, PAUSE, PAUSE], SIZE), "each token was made once"
    assert len(pools.selects) == (options is ALWAYS)
    assert dict(call.headers())["x-skim-reason"].endswith(f";again={PAUSE}")
    assert call.prompts[0].mode == ("speculative" if options is ALWAYS else "dense")
    if options is ALWAYS:
        first, second = (dispatcher.selections.get(name, "").as_json()["spans"] for name in ("r", "second"))
        assert first == second
    assert (held(dispatcher), counted(dispatcher)) == ([], ["held", "resumed"])


async def test_asked_again_when_it_is_complete():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    pools.go.set()
    await until(lambda: held(dispatcher)[0].record.finished and held(dispatcher)[0].task is None)
    assert await answer(dispatcher, call=(call := a_call())) == await expected()
    assert (begins(pools), sum(pools.made)) == ([0, PAUSE], SIZE)
    assert dict(call.headers())["x-skim-reason"].endswith(f";again={SIZE}")
    assert call.headers_are_true


async def test_for_no_client_it_goes_on_at_the_lowest_priority():
    pools = Pools()
    await hung_up(a_dispatcher(pools), asks(priority=3))
    await until(lambda: len(pools.generates) == 2)
    first, behind = pools.generates
    assert (first.priority, behind.priority) == (3, held_answers.LOWEST_PRIORITY)
    assert first.request_id != behind.request_id
    assert (first.prompt.session is None, behind.prompt.session) == (False, None)


async def test_each_is_given_once():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    pools.go.set()
    whole = await expected()
    assert [await answer(dispatcher) for _ in range(2)] == [whole, whole]
    assert begins(pools)[-1] == 0


async def test_two_repeats_at_once_both_get_an_answer():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    both = asyncio.gather(answer(dispatcher), answer(dispatcher))
    await until(lambda: len(pools.generates) == 4)
    pools.go.set()
    whole = await expected()
    assert await both == [whole, whole]
    assert sorted(begins(pools)[2:]) == [0, PAUSE]


async def test_who_hangs_up_again_and_again_loses_nothing():
    pools = Pools(cache_tokens=0)
    dispatcher = a_dispatcher(pools)
    for _ in range(3):
        await hung_up(dispatcher)
    pools.go.set()
    assert await answer(dispatcher) == await expected()
    assert begins(pools) == [0, PAUSE, PAUSE, PAUSE]
    assert len(pools.selects) == 1


OTHERS = {
    "tokens": {"asked": asks([8, *IDS[1:]])},
    "temperature": {"asked": asks(temperature=0.5)},
    "seed": {"asked": asks(seed=1)},
    "length": {"asked": asks(max_tokens=SIZE + 1)},
    "stream": {"asked": asks(output_kind=DELTA)},
    "salt": {"asked": asks(cache_salt="s")},
    "priority": {"asked": asks(priority=1)},
    "adapter": {"asked": asks(engine_args={ADAPTER: "sql"})},
    "key": {"caller": caller("other")},
    "no key": {"caller": None},
    "keep rate": {"options": ALWAYS.model_copy(update={"keep_rate": 0.3})},
    "dense": {"options": DENSE},
    "drafts": {"decode_is_explicit": True},
    "tools": {"has_tools": True},
    "later requests": {"later_requests": 3},
}


@pytest.mark.parametrize("other", OTHERS)
async def test_another_request_is_a_new_one(other):
    pools, mine = Pools(), caller("mine")
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher, call=a_call(caller=mine))
    pools.go.set()
    fields = {"caller": mine, **OTHERS[other]}
    await answer(dispatcher, fields.pop("asked", None), a_call(**fields))
    assert [begins(pools)[number] for number in pools.of_clients] == [0, 0]
    assert len(held(dispatcher)) == 1
    await answer(dispatcher, call=a_call(caller=mine))
    assert (held(dispatcher), counted(dispatcher)) == ([], ["held", "resumed"])


UNHELD = {
    "streamed": {"asked": asks(output_kind=DELTA)},
    "cumulative": {"asked": asks(output_kind=CUMULATIVE)},
    "two answers": {"asked": asks(n=2)},
    "logprobs": {"asked": asks(logprobs=0)},
    "prompt_logprobs": {"asked": asks(prompt_logprobs=1), "options": DENSE},
    "beam search": {"beam_search": True},
    "without migration": {"settings": RouterConfig(migration=False)},
    "failed": {"failed": True},
}


@pytest.mark.parametrize("case", UNHELD)
async def test_what_ends_with_its_client(case):
    fields = dict(UNHELD[case])
    pools, asked, failed = Pools(), fields.pop("asked", None), fields.pop("failed", False)
    dispatcher = a_dispatcher(pools, fields.pop("settings", None))
    call = a_call(**fields)
    call.error = HttpError(400, "BadRequestError", "another prompt of the call", None) if failed else None
    await hung_up(dispatcher, asked, call)
    assert (held(dispatcher), counted(dispatcher), pools.target_engine.running) == ([], [], 0)
    assert (len(pools.generates), pools.target_engine.aborted) == (1, 1)


async def test_a_hang_up_in_the_selection_or_before_the_first_token_leaves_nothing():
    pools = Pools(speculator={"latency_ms": 600_000})
    dispatcher = a_dispatcher(pools)
    task = asyncio.create_task(answer(dispatcher))
    await until(lambda: pools.speculator_engine.running)
    await cancelled(task)
    assert (held(dispatcher), pools.generates) == ([], [])
    pools = LocalPools(target={"prefill_ms": 600_000, "cache_tokens": 10**6})
    dispatcher = a_dispatcher(pools)
    task = asyncio.create_task(answer(dispatcher))
    await until(lambda: pools.target_engine.running)
    await cancelled(task)
    assert (held(dispatcher), len(pools.generates), pools.target_engine.running) == ([], 1, 0)


async def test_a_deadline_that_is_over_ends_the_answer():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    with pytest.raises(DeadlineError):
        await answer(dispatcher, call=a_call(deadline=Deadline.after(2000)))
    assert (pools.made, held(dispatcher), pools.target_engine.running) == ([PAUSE], [], 0)


@pytest.mark.parametrize("case", ["load", "no prefix cache", "another one runs"])
async def test_where_there_is_no_room_it_waits_for_its_client(case):
    pools = Pools(cache_tokens=0 if case == "no prefix cache" else 10**6)
    dispatcher = a_dispatcher(pools)
    if case == "load":
        dispatcher.admission.share = 0.1
    if case == "another one runs":
        await hung_up(dispatcher, asks([9, *IDS[1:]]))
        await until(lambda: len(pools.generates) == 2)
    before = len(pools.generates)
    await hung_up(dispatcher)
    assert held(dispatcher)[-1].task is None
    pools.go.set()
    assert await answer(dispatcher) == await expected()
    assert begins(pools)[before:] == [0, PAUSE]


@pytest.mark.parametrize("share", [0.05, 0.1])
async def test_load_ends_what_goes_on_and_loses_none_of_it(share):
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    await until(lambda: pools.target_engine.running)
    dispatcher.admission.share = share
    await answer(dispatcher, asks([9, *IDS[1:]], max_tokens=4))
    if share < 0.1:
        assert pools.target_engine.running == 1
    else:
        await until(lambda: not pools.target_engine.running)
    pools.go.set()
    assert await answer(dispatcher) == await expected()
    assert (begins(pools)[-1] > 0, sum(pools.made)) == (True, SIZE + 4)


async def test_after_the_hold_time_it_is_a_new_request(monkeypatch):
    now, pools = [0.0], Pools()
    dispatcher = a_dispatcher(pools)
    dispatcher.held_answers._clock = lambda: now[0]
    await hung_up(dispatcher)
    now[0] += 10 * held_answers.HELD_S
    await hung_up(dispatcher)
    assert begins(pools)[-2] == PAUSE, "the time begins when nothing goes on with it"
    pools.go.set()
    await until(lambda: held(dispatcher)[0].task is None)
    now[0] += held_answers.HELD_S
    assert await answer(dispatcher) == await expected()
    assert (begins(pools)[-1], held(dispatcher)) == (0, [])


async def test_the_oldest_is_dropped(monkeypatch):
    monkeypatch.setattr(held_answers, "MOST", 2)
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    for first in (7, 8, 9):
        await hung_up(dispatcher, asks([first, *IDS[1:]]))
    assert [int(one.prepared.prompt.rendered.token_ids[0]) for one in held(dispatcher)] == [8, 9]
    await until(lambda: pools.target_engine.running == 1)
    assert [one.task is not None for one in held(dispatcher)] == [False, True], "the place of the first one is free"


async def test_a_router_that_stops_ends_and_holds_none():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    await until(lambda: pools.target_engine.running)
    dispatcher.held_answers.close()
    await until(lambda: not pools.target_engine.running)
    assert (held(dispatcher), len(dispatcher.background)) == ([], 0)
    await hung_up(dispatcher)
    assert (held(dispatcher), begins(pools)[-1]) == ([], 0)


async def test_a_repeat_that_is_refused_leaves_it_for_the_next():
    pools = Pools()
    dispatcher = a_dispatcher(pools, most=1)
    await hung_up(dispatcher)
    other = asyncio.create_task(answer(dispatcher, asks([9, *IDS[1:]])))
    await until(lambda: len(pools.made) == 3 and pools.made[-1] == PAUSE)
    with pytest.raises(OverloadedError):
        await answer(dispatcher)
    pools.go.set()
    await other
    assert await answer(dispatcher) == await expected()
    assert sum(pools.made) == 2 * SIZE


class Use:
    """Counts what an API key is charged."""

    def __init__(self):
        self.spent = []

    def spend(self, tokens, *, first):
        self.spent.append(tokens)

    def give_back(self, tokens):
        self.spent.append(-tokens)


@pytest.mark.parametrize(("cache_tokens", "complete"), [(10**6, True), (10**6, False), (0, False)])
async def test_a_key_pays_once_for_what_is_read_once(cache_tokens, complete):
    pools, use = Pools(cache_tokens), Use()
    dispatcher, who = a_dispatcher(pools), Caller(caller("k").key, use)
    await hung_up(dispatcher, call=a_call(caller=who))
    assert use.spent == [len(IDS)]
    if complete:
        pools.go.set()
        await until(lambda: held(dispatcher)[0].record.finished)
    again = asyncio.create_task(answer(dispatcher, call=a_call(caller=who)))
    pools.go.set()
    await again
    assert sum(use.spent) == (len(IDS) if cache_tokens else 2 * len(IDS))


async def test_usage_and_times_are_those_of_the_repeat():
    """What the target read for the request before is no cached prompt of that one, and no time of this one."""
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await hung_up(dispatcher)
    began, learned = dispatcher.forecaster.began, []
    dispatcher.forecaster.began = lambda *told: learned.append(told[2:]) or began(*told)
    answers = dispatcher.admission.answered
    dispatcher.admission.answered = lambda ticket, tokens: learned.append(tokens) or answers(ticket, tokens)
    pools.go.set()
    dispatcher.held_answers.hold_back()
    [output] = [o async for o in dispatcher.run("again", asks(), a_call())]
    kept = pools.generates[-1].prompt.token_ids.size
    assert kept // 2 < output.cached_tokens < kept
    [(cached, _, _), tokens] = learned
    assert (cached, tokens) == (output.cached_tokens, SIZE - PAUSE)
