"""Catch-up over mock engines in virtual time: what the target reads after a skimmed turn, when, and what ends it."""

import asyncio
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.harness import virtual_time
from kv_transfer.messages import ADAPTER, READ_ONLY, TokenLogprob
from kv_transfer.options import DecodeOptions
from router.admission.api_keys import Caller
from router.decision.catch_up import STREAM_SHARE
from router.decision.conversations import IDLE_S, REST_S
from router.decision.guard import ENOUGH
from router.dispatch import catch_up as measured
from router.dispatch.catch_up import LOWEST_PRIORITY, SCORED_TOKENS
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import unwatched
from router.pools.migration import ReplicaLostError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt as one_prompt

GREEDY, LONG = {"max_tokens": 4, "temperature": 0.0}, {"max_tokens": 1000}
SIZE = 3000
CHUNK_S = 0.2048
"""Of 2,048 tokens."""


class Pools(LocalPools):
    """A target that reads 10 tokens in a millisecond. before: called with each read of a catch-up, by its number.

    reads: (virtual time, end, scored, cached tokens) of those that were answered.
    """

    def __init__(self, cache_tokens=2**20, **target):
        target = {"cache_tokens": cache_tokens, "prefill_ms_per_token": 0.1, "decode_ms": 10.0, **target}
        super().__init__(target=target)
        self.reads, self.asked, self.cancelled = [], 0, 0
        self.before = lambda number: None
        self.rank = None

    async def generate(self, request, admitted=unwatched):
        if not is_read(request):
            async for output in super().generate(request, admitted):
                yield output
            return
        self.before(self.asked)
        self.asked += 1
        begun, done = asyncio.get_running_loop().time(), False
        try:
            async for output in super().generate(request, admitted):
                if self.rank is not None and output.prompt_logprobs:
                    output.prompt_logprobs[:] = [[TokenLogprob(7, -1.0, self.rank)] for _ in output.prompt_logprobs]
                done = True
                self.reads.append((begun, request.prompt.token_ids.size, request.scored, output.cached_tokens))
                yield output
        finally:
            self.cancelled += not done

    @property
    def ends(self):
        return [end for _, end, _, _ in self.reads]


def is_read(request):
    return "-catch-up-" in request.request_id


def tokens(seed, size):
    return np.random.default_rng(seed).integers(7, 900, size).tolist()


def a_dispatcher(pools, **settings):
    return Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(**settings), LocalMeter())


def a_call(ids, *, later=1, sampling=GREEDY, caller=None, prompt=None, has_tools=False, **options):
    """options: the client's. The deployment has a keep rate of its own."""
    resolved = PrefillOptions(**{"min_prompt_tokens": 256, "keep_rate": 0.2, **options})
    request = Request(
        PrefillOptions.model_construct(set(options), **dict(resolved)),
        DecodeOptions(),
        caller=caller,
        later_requests=later,
        has_tools=has_tools,
    )
    fields = {"sampling": sampling, "max_tokens": sampling["max_tokens"], "cache_salt": "salt", **(prompt or {})}
    return one_prompt(ids, **fields), CallState(request)


async def turn(dispatcher, ids, name="r", **asked):
    """One turn of a client: the tokens of its answer, and its outcome."""
    asks, call = a_call(ids, **asked)
    answer, first = [], None
    async for output in dispatcher.run(name, asks, call):
        first = first or output
        answer += [token for part in output.completions if part.index == 0 for token in part.token_ids.tolist()]
    return SimpleNamespace(
        answer=answer,
        outcome=call.prompts[0],
        cached=first.cached_tokens,
        header=dict(call.headers()).get("x-skim-catch-up"),
    )


def ended(dispatcher):
    return [tags["outcome"] for _, tags in dispatcher.meter.recorded.get("skim_router_catch_ups_total", [])]


async def settled(dispatcher, count=1):
    """Until so many catch-ups have ended."""
    await until(lambda: len(ended(dispatcher)) >= count)


def simulated(test):
    """Run an async test in virtual time."""

    def run():
        virtual_time.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@simulated
async def test_the_next_turn_finds_the_whole_history_and_runs_dense():
    for wish, mode, least, state in (
        ("auto", "dense", SIZE, "caught-up;tokens=2944"),
        ("off", "speculative", 0, "off;reason=disabled"),
    ):
        pools = Pools()
        dispatcher = a_dispatcher(pools)
        ids = tokens(1, SIZE)
        first = await turn(dispatcher, ids, catch_up=wish)
        assert first.outcome.mode == "speculative"
        await asyncio.sleep(10)
        assert ended(dispatcher) == (["done"] if wish == "auto" else [])
        history = [*ids, *first.answer]
        second = await turn(dispatcher, [*history, *tokens(2, 60)], later=0, catch_up=wish)
        assert (second.outcome.mode, second.header) == (mode, state)
        assert second.cached >= least // 16 * 16 if least else second.cached < SIZE / 2
        # From then on the conversation stays dense.
        third = await turn(dispatcher, [*history, *tokens(2, 60), *second.answer, *tokens(3, 60)], catch_up=wish)
        assert third.outcome.mode == mode


@pytest.mark.parametrize(
    ("new", "before", "mode"),
    [
        (6000, "caught up", "dense"),
        (8190, "caught up", "dense"),
        (8400, "caught up", "speculative"),
        (6000, "evicted", "speculative"),
        (6000, "skimmed", "speculative"),
    ],
)
def test_fresh_text_behind_a_warm_history_runs_dense_and_large_text_is_skimmed(new, before, mode):
    """By the estimate alone, all of these turns would be skimmed: the mock speculator takes no time."""

    async def run():
        pools = Pools(max_model_len=32_768)
        dispatcher = a_dispatcher(pools)
        for number in range(4):  # both pools are measured
            await turn(dispatcher, tokens(20 + number, 1000 * (number + 1)), f"first {number}", later=0)
        ids = tokens(1, 10_000)
        first = await turn(dispatcher, ids, catch_up="off" if before == "skimmed" else "auto")
        await asyncio.sleep(10)
        if before == "evicted":
            dispatcher.forecaster.caches.dense.wrote(2**22)
        found = await turn(dispatcher, [*ids, *first.answer, *tokens(2, new)], later=0)
        assert (found.outcome.mode, found.outcome.reason) == (mode, "cached" if mode == "dense" else "sooner")
        if mode == "dense":
            assert found.cached >= 10_000

    virtual_time.run(run())


@simulated
async def test_which_requests_read_it():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    ids = tokens(1, SIZE)
    first = await turn(dispatcher, ids, prompt={"engine_args": {"reasoning_ended": True}})
    await settled(dispatcher)
    client, *reads = pools.generates
    assert first.header == "planned;reason=later-requests"
    assert [(read.prompt.token_ids.size, read.scored) for read in reads] == [(2048, 0), (2944, 0), (3004, 4)]
    assert len({read.request_id for read in reads}) == 3
    for read in reads:
        assert read.prompt.is_dense
        assert read.prompt.token_ids.tolist() == [*ids, *first.answer][: read.prompt.token_ids.size]
        assert read.sampling == READ_ONLY
        assert (read.cache_salt, read.priority, read.decode.method) == ("salt", LOWEST_PRIORITY, "none")
        assert read.envelope.affinity == client.envelope.affinity != ""
        assert dict(read.engine_args) == {}
    assert [cached for _, _, _, cached in pools.reads] == [0, 2048, 2944], "each of them reads its new chunk alone"
    # No metric of clients counts them.
    recorded = dispatcher.meter.recorded
    assert len(recorded["skim_router_requests_total"]) == 1
    assert sum(value for value, _ in recorded["skim_router_catch_up_tokens_total"]) == 3004
    held = dispatcher.log.get("r").as_json()
    assert held["decision"]["catch_up"] == first.header
    assert held["catch_up"]["state"] == "done"
    assert held["catch_up"]["tokens"] == held["catch_up"]["of"] == 3004


@simulated
async def test_an_adapter_reads_with_its_name_and_its_salt():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await turn(dispatcher, tokens(1, SIZE), prompt={"engine_args": {ADAPTER: "legal", "reasoning_ended": True}})
    await settled(dispatcher)
    client, *reads = pools.generates
    assert reads
    for read in reads:
        assert dict(read.engine_args) == {ADAPTER: "legal"}
        assert read.cache_salt == client.cache_salt


@simulated
async def test_of_several_answers_none_is_read():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await turn(dispatcher, tokens(1, SIZE), sampling={**GREEDY, "n": 2})
    await settled(dispatcher)
    assert [(end, scored) for _, end, scored, _ in pools.reads] == [(2048, 0), (SIZE, 0)]


@simulated
async def test_a_long_answer_is_scored_in_part_and_read_as_a_whole():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await turn(dispatcher, tokens(1, SIZE), sampling={**GREEDY, "max_tokens": 400})
    await settled(dispatcher)
    assert pools.ends[-2:] == [SIZE + SCORED_TOKENS, SIZE + 400]
    assert pools.reads[-2][2] == SCORED_TOKENS


@pytest.mark.parametrize(
    ("asked", "header"),
    [
        ({"later": None}, "off;reason=no-later-turn"),
        ({"later": 0, "has_tools": True}, "off;reason=no-later-turn"),
        ({"catch_up": "off"}, "off;reason=disabled"),
        ({"enabled": "always"}, "off;reason=always"),
        ({"enabled": False}, None),
        ({"keep_rate": 1.0}, None),
    ],
)
def test_other_turns_are_not_caught_up(asked, header):
    async def run():
        pools = Pools()
        dispatcher = a_dispatcher(pools)
        assert (await turn(dispatcher, tokens(1, SIZE), **asked)).header == header
        await asyncio.sleep(10)
        assert pools.reads == []
        assert ended(dispatcher) == []

    virtual_time.run(run())


@pytest.mark.parametrize(
    "asked",
    [
        {"later": None, "has_tools": True},
        {"later": None, "catch_up": "always"},
        {"enabled": "always", "catch_up": "always"},
    ],
)
def test_these_turns_are(asked):
    async def run():
        pools = Pools()
        dispatcher = a_dispatcher(pools)
        assert (await turn(dispatcher, tokens(1, SIZE), **asked)).header.startswith("planned")
        await settled(dispatcher)
        assert ended(dispatcher) == ["done"]

    virtual_time.run(run())


@simulated
async def test_a_cache_that_is_too_small_holds_no_conversation():
    pools = Pools(cache_tokens=5000)
    dispatcher = a_dispatcher(pools)
    assert (await turn(dispatcher, tokens(1, SIZE))).header == "off;reason=no-room"


@simulated
async def test_conversations_that_come_back_need_room_together():
    """Two of them fit. One that never came back takes no room; after ten minutes, none does."""
    dispatcher, headers = a_dispatcher(Pools(cache_tokens=5 * SIZE // 2)), []
    for place, seed in enumerate((1, 2, 1, 2, 3)):
        headers.append((await turn(dispatcher, tokens(seed, SIZE), f"r{place}")).header)
    assert headers[:2] == ["planned;reason=later-requests"] * 2
    assert headers[4] == "off;reason=no-room"
    await asyncio.sleep(IDLE_S + 1)
    assert (await turn(dispatcher, tokens(4, SIZE), "late")).header == "planned;reason=later-requests"
    dispatcher.catch_ups.close()


def a_caller(name, use=None):
    return Caller(SimpleNamespace(name=name, share=1.0, isolate_cache=False), use or Use())


async def headers_after(callers, *, has_tools, conversations=10, later_turns=3):
    """What a batch client, which never comes back, and a chat client are told in the last of their conversations."""
    pools, seeds, found = Pools(), count(1), {}
    dispatcher, pools.rank = a_dispatcher(pools), 1
    asked = {"later": None, "has_tools": has_tools}
    for _ in range(conversations):
        for name, caller in callers.items():
            ids = tokens(next(seeds), SIZE)
            last = await turn(dispatcher, ids, caller=caller, **asked)
            found[name] = last.header
            for _ in range(later_turns if name == "chat" else 0):
                ids += [*last.answer, *tokens(next(seeds), 30)]
                last = await turn(dispatcher, ids, caller=caller, **asked)
        await asyncio.sleep(REST_S + 1)
    dispatcher.catch_ups.close()
    return found


@pytest.mark.parametrize("has_tools", [True, False])
def test_a_batch_client_is_not_caught_up_and_a_chat_client_with_prompts_of_the_same_shape_is(has_tools):
    async def run():
        callers = {name: a_caller(name) for name in ("batch", "chat")}
        found = await headers_after(callers, has_tools=has_tools)
        assert found == {"batch": "off;reason=no-later-turn", "chat": "planned;reason=later-turns"}

    virtual_time.run(run())


@simulated
async def test_with_one_key_both_are_one_client():
    """The negative control."""
    found = await headers_after(dict.fromkeys(("batch", "chat"), a_caller("one")), has_tools=True)
    assert found == dict.fromkeys(("batch", "chat"), "planned;reason=later-turns")


@simulated
async def test_the_next_turn_ends_it_and_takes_the_blocks_that_are_done():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    ids = tokens(1, 4000)
    first = await turn(dispatcher, ids)
    await until(lambda: pools.asked == 2)  # the first chunk is read
    second = await turn(dispatcher, [*ids, *first.answer, *tokens(2, 30)], catch_up="off", enabled=False)
    assert ended(dispatcher) == ["next-turn"]
    assert pools.cancelled == 1
    assert second.cached >= 2048
    await asyncio.sleep(10)
    assert pools.asked == 2, "nothing more is read for the turn before"


@simulated
async def test_another_conversation_does_not_end_it():
    """It has the same system prompt, which is not half of what is this conversation's own."""
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await turn(dispatcher, [*tokens(1, 1000), *tokens(2, 3000 - 1000)])
    await until(lambda: pools.asked == 1)
    await turn(dispatcher, [*tokens(1, 1000), *tokens(3, 2000)], "other", catch_up="off")
    await settled(dispatcher)
    assert ended(dispatcher) == ["done"]


@simulated
async def test_two_questions_about_one_document_are_both_caught_up():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    document = tokens(1, 2600)
    histories = []
    for number in (2, 3):
        ids = [*document, *tokens(number, 100)]
        first = await turn(dispatcher, ids, f"r{number}", enabled="always", catch_up="always")
        histories.append([*ids, *first.answer])
        await asyncio.sleep(5)
    assert ended(dispatcher) == ["done", "done"]
    for history in histories:
        later = await turn(dispatcher, [*history, *tokens(8, 40)], later=0)
        assert (later.outcome.mode, later.outcome.reason) == ("dense", "cached")
        assert later.cached >= 2688


@simulated
async def test_no_chunk_begins_while_a_clients_prompt_is_read():
    pools = Pools(prefill_ms_per_token=1.0)
    dispatcher = a_dispatcher(pools)
    ids = tokens(1, SIZE)
    await turn(dispatcher, ids)
    other = asyncio.create_task(turn(dispatcher, tokens(5, 2000), "other", enabled=False))
    await until(lambda: any(not is_read(request) for request in pools.generates[1:]))
    begun = asyncio.get_running_loop().time()
    await other
    await settled(dispatcher)
    assert not [at for at, *_ in pools.reads if begun < at < begun + 1.99], "the other prompt takes 2 s"
    assert ended(dispatcher) == ["done"]


@pytest.mark.parametrize("streams", [0, 1])
def test_running_streams_keep_their_share(streams):
    """A stream stands still while a chunk runs, in the worst case."""

    async def run():
        pools = Pools()
        dispatcher = a_dispatcher(pools)
        running = [
            asyncio.create_task(turn(dispatcher, tokens(5, 300), f"stream {number}", enabled=False, sampling=LONG))
            for number in range(streams)
        ]
        await asyncio.sleep(0.1)
        await turn(dispatcher, tokens(1, SIZE))
        await settled(dispatcher)
        (first, end, _, _), (second, *_), *_ = pools.reads
        assert end == 2048
        pause = second - first - CHUNK_S
        if streams:
            assert pause >= CHUNK_S * STREAM_SHARE / (1 - STREAM_SHARE)
        else:
            assert pause < 0.1, "nobody is slowed"
        await asyncio.gather(*running)

    virtual_time.run(run())


@simulated
async def test_each_replica_has_its_own_pauses():
    pools, replicas = Pools(), 4
    pools.replicas = lambda pool: replicas
    dispatcher = a_dispatcher(pools)
    stream = asyncio.create_task(turn(dispatcher, tokens(5, 300), "stream", enabled=False, sampling=LONG))
    for number in range(replicas):
        await turn(dispatcher, tokens(10 + number, SIZE), f"r{number}")
    await settled(dispatcher, replicas)
    begun = sorted((size, at) for at, size, _, _ in pools.reads)
    firsts, seconds = ([at for size, at in begun if size == end] for end in (2048, 2944))
    assert len(firsts) == len(seconds) == replicas
    for first, second in zip(firsts, seconds, strict=True):
        assert second - first >= CHUNK_S / (1 - STREAM_SHARE)
    await stream


@simulated
async def test_load_cancels_the_chunk_and_it_is_read_later():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    await turn(dispatcher, tokens(1, SIZE))
    await until(lambda: pools.asked == 1)
    dispatcher.catch_ups.hold()
    await settled(dispatcher)
    assert pools.cancelled == 1
    assert ended(dispatcher) == ["done"]
    assert pools.ends == [2048, 2944, 3004]


@simulated
async def test_a_loaded_router_holds_it():
    """The prompt of another client arrives with a load."""
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    held = []
    dispatcher.catch_ups.hold = lambda: held.append(1)
    await turn(dispatcher, tokens(1, SIZE))
    assert held == []
    accept = dispatcher.admission._accept

    def loaded(*asked):
        ticket = accept(*asked)
        ticket.load = 0.1
        return ticket

    dispatcher.admission._accept = loaded
    await turn(dispatcher, tokens(2, SIZE), "other")
    assert held == [1]
    dispatcher.catch_ups.close()


@simulated
async def test_the_end_of_the_router_ends_all():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    for number in range(2):
        await turn(dispatcher, tokens(number, SIZE), f"r{number}")
    await until(lambda: pools.asked == 1)
    dispatcher.catch_ups.close()
    await settled(dispatcher, 2)
    assert ended(dispatcher) == ["stopped", "stopped"]
    assert pools.cancelled == 1
    await turn(dispatcher, tokens(3, SIZE), "while the router drains")
    await asyncio.sleep(10)
    assert pools.asked == 1


@simulated
async def test_a_client_that_hangs_up_leaves_nothing_to_catch_up():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    asks, call = a_call(tokens(1, SIZE))
    outputs = dispatcher.run("r", asks, call)
    await anext(outputs)
    await outputs.aclose()
    await asyncio.sleep(10)
    assert (pools.reads, ended(dispatcher)) == ([], [])


class Use:
    """Counts what an API key is charged."""

    def __init__(self):
        self.spent = []

    def spend(self, tokens, *, first):
        self.spent.append(tokens)

    def give_back(self, tokens):
        self.spent.append(-tokens)


@simulated
async def test_a_key_pays_for_its_prompt_once():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    use = Use()
    await turn(dispatcher, tokens(1, SIZE), caller=a_caller("k", use))
    await settled(dispatcher)
    assert (use.spent, ended(dispatcher)) == ([SIZE], ["done"])
    assert dispatcher.log.get("r", "k").as_json()["catch_up"]["state"] == "done"


@pytest.mark.parametrize(("deaths", "outcome"), [(1, "done"), (2, "failed")])
def test_a_replica_that_dies_under_it_loses_the_blocks_but_no_turn(deaths, outcome):
    async def run():
        pools, left = Pools(), [deaths]

        def before(number):
            if number and left[0]:
                left[0] -= 1
                pools.target_engine.compute.cache.__init__(2**20)
                raise ReplicaLostError("died", accepted=True)

        pools.before = before
        dispatcher = a_dispatcher(pools)
        ids = tokens(1, SIZE)
        first = await turn(dispatcher, ids)
        await settled(dispatcher)
        assert ended(dispatcher) == [outcome]
        if outcome == "done":
            assert pools.ends == [2048, 2048, 2944, 3004], "it begins again"
        second = await turn(dispatcher, [*ids, *first.answer, *tokens(2, 60)], later=0)
        assert len(second.answer) == 4
        # What the replica had read counts as lost, so the cost decides by what is there.
        assert second.outcome.mode == ("dense" if outcome == "done" else "speculative")

    virtual_time.run(run())


@pytest.mark.parametrize(("evictions", "outcome"), [(1, "done"), (2, "evicted")])
def test_a_cache_that_loses_the_chunks_ends_it(evictions, outcome):
    async def run():
        pools = Pools()

        def before(number):
            if 1 <= number <= evictions:
                pools.target_engine.compute.cache.__init__(2**20)

        pools.before = before
        dispatcher = a_dispatcher(pools)
        await turn(dispatcher, tokens(1, 4000))
        await settled(dispatcher)
        assert ended(dispatcher) == [outcome]
        assert pools.reads[1][3] == 0

    virtual_time.run(run())


@simulated
async def test_what_never_gets_idle_time_is_dropped():
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    dispatcher.catch_ups._admission = SimpleNamespace(is_idle=False)  # there is never idle time
    for number in range(measured.MOST_WAITING + 2):
        await turn(dispatcher, tokens(number, 600), f"r{number}")
    await settled(dispatcher)
    assert ended(dispatcher) == ["dropped"]
    await asyncio.sleep(measured.LONGEST_S + 1)
    assert ended(dispatcher) == ["dropped"] * 2, "the first one has had its time"
    assert pools.reads == []
    dispatcher.catch_ups.close()


@simulated
async def test_a_client_with_many_conversations_does_not_drop_those_of_others():
    dispatcher = a_dispatcher(Pools())
    dispatcher.catch_ups._admission = SimpleNamespace(is_idle=False)
    for number in range(measured.MOST_WAITING + 3):
        name = "few" if number in (1, 2) else "many"
        await turn(dispatcher, tokens(number, 600), f"r{number}", caller=a_caller(name))
    waiting = [reading.prepared.request_id for reading in dispatcher.catch_ups._readings if not reading.runs]
    assert waiting[:3] == ["r1", "r2", "r5"], "r0 runs"
    await settled(dispatcher, 2)
    assert ended(dispatcher) == ["dropped", "dropped"]
    dispatcher.catch_ups.close()


@pytest.mark.parametrize(("rank", "outcome"), [(1, "agrees"), (2, "differs")])
def test_what_the_dense_model_would_have_answered_is_measured(rank, outcome):
    async def run():
        pools = Pools()
        pools.rank = rank
        dispatcher = a_dispatcher(pools)
        await turn(dispatcher, tokens(1, SIZE))
        await settled(dispatcher)
        [(share, tags)] = dispatcher.meter.recorded["skim_router_audit_agreement"]
        assert (share, tags) == (float(rank == 1), {"kind": "text"})
        assert dispatcher.meter.recorded["skim_router_audits_total"] == [(1, {"outcome": outcome, "kind": "text"})]
        assert dispatcher.log.get("r").as_json()["catch_up"]["agreement"] == share

    virtual_time.run(run())


@pytest.mark.parametrize(
    "sampling",
    [{"max_tokens": 4}, {**GREEDY, "temperature": 0.7}, {**GREEDY, "n": 2}, {**GREEDY, "frequency_penalty": 0.5}],
)
def test_an_answer_that_is_not_the_likeliest_is_read_and_not_measured(sampling):
    async def run():
        pools = Pools()
        dispatcher = a_dispatcher(pools)
        await turn(dispatcher, tokens(1, SIZE), sampling=sampling)
        await settled(dispatcher)
        assert ended(dispatcher) == ["done"]
        assert not any(scored for _, _, scored, _ in pools.reads)
        assert "skim_router_audits_total" not in dispatcher.meter.recorded

    virtual_time.run(run())


@simulated
async def test_a_kind_whose_answers_differ_runs_dense():
    """Unless a request says how much is kept."""
    pools = Pools()
    dispatcher = a_dispatcher(pools)
    for _ in range(2 * int(ENOUGH)):
        dispatcher.agreements.measured(("", "text"), agrees=False)
    found = await turn(dispatcher, tokens(1, SIZE), "a", later=0)
    assert (found.outcome.mode, found.outcome.reason) == ("dense", "guard-agreement")
    for place, asked in enumerate(({"keep_rate": 0.2}, {"has_tools": True}, {"caller": a_caller("other")})):
        other = await turn(dispatcher, tokens(2 + place, SIZE), f"r{place}", later=0, **asked)
        assert other.outcome.mode == "speculative"
    unguarded = a_dispatcher(Pools(), guard=False)
    unguarded.agreements = dispatcher.agreements
    assert (await turn(unguarded, tokens(1, SIZE), later=0)).outcome.mode == "speculative"


@pytest.mark.parametrize(
    ("options", "learns"),
    [
        ({}, True),
        ({"catch_up": "always", "lossy": "allow"}, True),
        ({"keep_rate": 0.01, "min_keep": 0.01}, False),
        ({"look_ahead": 4}, False),
        ({"enabled": "always", "catch_up": "always"}, False),
    ],
)
def test_the_guard_learns_from_what_auto_does_by_itself(options, learns):
    """One client's own options make `auto` dense for nobody, and what one key asks counts for that key alone."""

    async def run():
        pools = Pools()
        pools.rank = 2
        dispatcher = a_dispatcher(pools)
        await turn(dispatcher, tokens(1, SIZE), caller=a_caller("one"), **options)
        await settled(dispatcher)
        assert set(dispatcher.agreements._shares) == ({("one", "text")} if learns else set())
        assert dispatcher.meter.recorded["skim_router_audits_total"][0][1]["outcome"] == "differs"

    virtual_time.run(run())


@simulated
async def test_a_share_of_the_answers_is_caught_up_for_the_measurement_alone():
    pools = Pools()
    dispatcher = a_dispatcher(pools, audit_share=0.25)
    numbers = iter([0.1, 0.25, 0.9, 0.2])
    dispatcher.catch_ups._chance = lambda: next(numbers)
    headers = [(await turn(dispatcher, tokens(n, SIZE), f"r{n}", later=0)).header for n in range(4)]
    assert headers == ["planned;reason=audit", *["off;reason=no-later-turn"] * 2, "planned;reason=audit"]
    # Only greedy answers that Skim chose to make from a part can be compared.
    for asked in ({"sampling": {"max_tokens": 4}}, {"enabled": "always"}):
        assert (await turn(dispatcher, tokens(9, SIZE), "other", later=0, **asked)).header.startswith("off")
    dispatcher.catch_ups.close()
