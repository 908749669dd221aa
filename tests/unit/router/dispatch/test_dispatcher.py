"""Requests to the two pools: which pool gets which request, and what happens when a pool fails."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness import virtual_time
from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.headers import TIMING_PARTS, TOTAL
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.availability import PoolDownError
from router.prompt.contents import ChatContents, Content
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SkimError, WireError
from skim_common.models.costs import ReadCost
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import IDS, SAMPLING, prompt, run


async def test_the_target_sees_what_the_speculator_kept():
    pools = LocalPools()
    ran = await run(pools, prompt(), keep_rate=0.25)
    kept = pools.generates[0].prompt
    assert kept.token_ids.tolist() == [IDS[i] for i in kept.positions]
    # The prompt has 19 chunks, so 5 of them are kept, and also the first token and the last 32.
    assert kept.token_ids.size == 5 * 32 + 32 + 1
    assert kept.context_length == 600
    assert kept.look_ahead_tokens.size == 8
    assert (ran.outcome.mode, ran.outcome.reason, ran.outcome.kept_tokens) == ("speculative", "requested", 193)
    assert 0 < ran.outcome.coverage < 1
    assert sum(c.token_ids.size for output in ran.outputs for c in output.completions) == 4
    assert ran.context.headers_are_true


class LatePools(LocalPools):
    """The speculator puts 32 early tokens before the last 32, as a later turn does with a late unit."""

    async def select(self, *args):
        selection = await super().select(*args)
        kept = selection.kept
        late = np.r_[0, 33 : kept.token_ids.size - 32, 1:33, kept.token_ids.size - 32 : kept.token_ids.size]
        moved = replace(kept, token_ids=kept.token_ids[late], positions=kept.positions[late])
        return replace(selection, kept=moved)


@pytest.mark.parametrize(("room", "length"), [(32, 632), (31, 600)])
async def test_the_target_reads_late_units_in_the_order_of_its_cache(room, length):
    """Unless the model has no positions for it. What a client sees of the selection is the text's own."""
    pools = LatePools()
    pools.target = replace(pools.target, max_position=600 + room + prompt().max_tokens)
    ran = await run(pools, prompt(), keep_rate=0.25)
    read = pools.generates[0].prompt
    assert (read.is_ascending, read.context_length) == (length > 600, length)
    shown = ran.dispatcher.log.get("r").explained.selection.kept
    assert read.token_ids.tolist() == shown.token_ids.tolist() == [IDS[i] for i in shown.positions]
    assert (shown.is_ascending, shown.context_length) == (False, 600)


async def test_every_part_of_the_time_is_accounted_for():
    ran = await run(LocalPools(), prompt())
    assert set(ran.outcome.timings) == {*TIMING_PARTS, TOTAL}
    assert all(ms >= 0 for ms in ran.outcome.timings.values())
    dense = await run(LocalPools(), prompt(), enabled=False)
    assert set(dense.outcome.timings) == {*TIMING_PARTS, TOTAL} - {"speculate", "select"}


async def test_a_pool_that_failed_its_start_probe_makes_every_prompt_dense():
    pools = LocalPools()
    pools.untrusted = True
    ran = await run(pools, prompt())
    assert (ran.outcome.mode, ran.outcome.reason) == ("dense", "start-probe")
    assert pools.selects == []


X = {"text": "x", "offsets": [(0, 1)]}


@pytest.mark.parametrize(
    ("ids", "fields", "options", "reason"),
    [
        (IDS, {}, {"keep_rate": 1.0}, "keep-all"),
        (IDS, {}, {"enabled": False}, "disabled"),
        (IDS[:255], {}, {}, "short-prompt"),
        ([7], {}, {}, "short-prompt"),
        (IDS, {"prompt_logprobs": True}, {}, "prompt-logprobs"),
        (IDS, {}, {"protected_spans": [[0, 600]]}, "all-protected"),
        (IDS, {"chat": ChatContents(["user"], [Content(0, "user", "x")])}, {}, "unmapped-chat"),
        (IDS, {"chat": ChatContents(["user"], [Content(0, "user", "x")]), **X}, {}, "unmapped-chat"),
        (IDS, {"chat": ChatContents(["user"], None), "text": "x", "offsets": [(0, 1)] * 600}, {}, "unmapped-chat"),
    ],
)
async def test_a_dense_prompt_never_meets_the_speculator(ids, fields, options, reason):
    """The last three cases have no text, offsets that do not fit it, or contents without places."""
    pools = LocalPools()
    ran = await run(pools, prompt(ids, **fields), **options)
    assert (ran.outcome.mode, ran.outcome.reason, ran.outcome.keep_rate) == ("dense", reason, 1.0)
    assert pools.selects == []
    assert pools.generates[0].prompt.is_dense
    assert pools.generates[0].prompt.token_ids.tolist() == ids


async def test_one_token_more_than_the_shortest_is_speculative():
    assert (await run(LocalPools(), prompt(IDS[:256]))).outcome.mode == "speculative"
    assert (await run(LocalPools(), prompt([7]), min_prompt_tokens=1)).outcome.kept_tokens == 1


async def test_the_clients_spans_are_kept():
    pools = LocalPools()
    spans = [[100, 117], [301, 302], [110, 130]]
    await run(pools, prompt(), keep_rate=0.05, protect_last=1, protected_spans=spans)
    with_spans = set(pools.generates[0].prompt.positions.tolist())
    assert set(range(100, 130)) | {301} <= with_spans
    await run(pools, prompt(), keep_rate=0.05, protect_last=1)
    assert not set(range(100, 130)) | {301} <= set(pools.generates[1].prompt.positions.tolist())


@pytest.mark.parametrize("span", [[5, 5], [9, 3], [0, 601], [600, 601]])
async def test_spans_outside_the_prompt_are_refused(span):
    pools = LocalPools()
    with pytest.raises(InvalidRequestError, match=rf"protected_spans: \[{span[0]}, {span[1]}\] .* prompt's 600 tokens"):
        await run(pools, prompt(), protected_spans=[span])
    assert pools.selects == pools.generates == []


async def test_of_a_chat_only_contents_are_dropped():
    text = "<user>" + "abcd " * 80 + "</s><user>Why?</s>"
    chat = prompt(
        IDS[: len(text)],
        chat=ChatContents(
            ["user", "user"],
            [Content(0, "user", "abcd " * 80, spans=((6, 406),)), Content(1, "user", "Why?", spans=((416, 420),))],
        ),
        text=text,
        offsets=[(i, i + 1) for i in range(len(text))],
    )
    pools = LocalPools()
    await run(pools, chat, keep_rate=0.01, protect_last=1)
    assert pools.selects[0].layout.protected.tolist() == [[0, 6], [406, len(text)]]
    assert pools.selects[0].layout.questions.tolist() == [[416, 420]]
    dropped = set(range(len(text))) - set(pools.generates[0].prompt.positions.tolist())
    assert dropped
    assert dropped <= set(range(6, 406))


@pytest.mark.parametrize("error", [EngineUnavailableError("gone"), WireError("torn"), SkimError("odd")])
async def test_a_failed_selection_runs_dense(error):
    pools = LocalPools()
    pools.select_error = error
    ran = await run(pools, prompt())
    assert (ran.outcome.mode, ran.outcome.reason, ran.outcome.kept_tokens) == ("dense", "speculator-error", 600)
    assert pools.generates[0].prompt.is_dense
    assert ran.outputs[-1].finished
    assert ran.dispatcher.log.get("r") is None


async def test_a_pool_that_is_down_is_named_as_the_reason_also_of_a_speculator_that_never_started():
    pools = LocalPools()
    pools.select_error = PoolDownError("down")
    pools.speculator = None
    ran = await run(pools, prompt())
    assert (ran.outcome.mode, ran.outcome.reason) == ("dense", "speculator-down")
    assert pools.generates[0].prompt.is_dense


async def test_a_late_selection_runs_dense_and_is_aborted():
    pools = LocalPools(speculator={"latency_ms": 600_000})
    ran = await run(pools, prompt(), timeout_s=0.02)
    assert (ran.outcome.mode, ran.outcome.reason) == ("dense", "speculator-timeout")
    assert pools.generates[0].prompt.is_dense
    assert (pools.speculator_engine.aborted, pools.speculator_engine.running) == (1, 0)


async def test_a_prompt_over_the_speculators_limit_is_refused():
    pools = LocalPools(speculator={"max_model_len": 500})
    with pytest.raises(InvalidRequestError, match="at most 500"):
        await run(pools, prompt())


async def test_what_the_speculator_refuses_is_the_clients_mistake():
    """A token id outside the vocabulary would be refused in a dense run too."""
    pools = LocalPools()
    with pytest.raises(InvalidRequestError, match="Token id 5000 is out of vocabulary"):
        await run(pools, prompt([5000, *IDS]))
    assert pools.generates == []


@pytest.mark.parametrize(
    ("speculator", "target", "numbers"),
    [
        ({}, {"max_model_len": 603}, ("600", "4", "604", "603")),
        ({"max_model_len": 607}, {}, ("600", "8", "607")),
    ],
)
async def test_a_prompt_too_long_for_a_pool_reaches_none(speculator, target, numbers):
    pools = LocalPools(speculator, target)
    with pytest.raises(InvalidRequestError) as caught:
        await run(pools, prompt())
    assert all(number in str(caught.value) for number in numbers)
    assert pools.selects == pools.generates == []


async def test_a_prompt_that_just_fits_both_pools_runs():
    assert (await run(LocalPools({"max_model_len": 608}, {"max_model_len": 604}), prompt())).outputs[-1].finished
    # The speculator's limit does not apply to a dense prompt.
    assert (await run(LocalPools({"max_model_len": 100}), prompt(), enabled=False)).outputs[-1].finished


@pytest.mark.parametrize("error", [None, InvalidRequestError("9,000 of its own tokens")])
async def test_a_prompt_that_the_speculator_cannot_read_runs_dense_under_auto(error):
    """With another tokenizer only the speculator itself knows that the prompt is too long for it."""
    pools = LocalPools({} if error else {"max_model_len": 607})
    pools.select_error = error
    ran = await run(pools, prompt(), enabled="auto")
    assert (ran.outcome.mode, ran.outcome.reason) == ("dense", "speculator-limit")
    assert pools.generates[0].prompt.is_dense
    assert ran.outputs[-1].finished
    pools.select_error = error
    with pytest.raises(InvalidRequestError):
        await run(pools, prompt(), enabled="always")


async def test_a_prompt_that_no_pool_can_read_is_refused_under_auto():
    with pytest.raises(InvalidRequestError, match="Token id 5000 is out of vocabulary"):
        await run(LocalPools(), prompt([5000, *IDS]), enabled="auto")


async def test_salt_priority_and_engine_arguments_reach_the_pools():
    pools = LocalPools()
    await run(pools, prompt(cache_salt="salt", priority=3, engine_args={"reasoning_ended": True}))
    assert pools.selects[0].cache_salt == "salt"
    sent = pools.generates[0]
    assert (sent.cache_salt, sent.priority, sent.engine_args) == ("salt", 3, {"reasoning_ended": True})


async def test_several_prompts_are_accounted_for_in_their_order():
    """The second prompt is decided first, because the first one waits for its selection."""
    selected = asyncio.Event()

    class WaitingPools(LocalPools):
        async def select(self, request, *_):
            await selected.wait()
            return await super().select(request)

    dispatcher = Dispatcher(WaitingPools(), PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    context = CallState(Request(PrefillOptions(min_prompt_tokens=256), DecodeOptions()))

    async def consume(name, ids):
        async for _ in dispatcher.run(name, prompt(ids), context):
            pass

    first = asyncio.create_task(consume("1", IDS))
    await asyncio.create_task(consume("2", IDS[:10]))
    assert context.answering
    assert not context.headers_are_true
    selected.set()
    await first
    assert context.headers_are_true
    headers = dict(context.headers())
    assert headers["x-skim-mode"] == "speculative, dense"
    assert headers["x-skim-prompt-tokens"] == "600, 10"
    assert headers["x-skim-look-ahead"] == "8, 0"


async def test_a_prompt_behind_a_dense_one_finds_what_the_target_reads_now():
    class Watched(LocalPools):
        async def generate(self, request, admitted):
            again = PrefillOptions(min_prompt_tokens=256)
            seen.append(dispatcher.forecaster.look(np.array(IDS, np.int32), None, again).coming)
            async for output in super().generate(request, admitted):
                yield output

    seen = []
    dispatcher = Dispatcher(Watched(), PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    for enabled in (False, "always"):
        context = CallState(Request(PrefillOptions(enabled=enabled, min_prompt_tokens=256), DecodeOptions()))
        async for _ in dispatcher.run("r", prompt(), context):
            pass
    assert seen == [512, 0]


def test_under_auto_a_conversation_that_began_dense_stays_on_its_cache():
    """The explicit wishes before and after are obeyed, whatever the estimates are."""

    async def conversation():
        pools = LocalPools(
            speculator={"ms_per_token": 0.01, "cache_tokens": 100_000},
            target={"prefill_ms_per_token": 0.05, "cache_tokens": 100_000, "max_model_len": 8192},
        )
        dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())

        async def ask(ids, **options):
            context = CallState(Request(PrefillOptions(min_prompt_tokens=256, **options), DecodeOptions()))
            async for _ in dispatcher.run("r", prompt(ids), context):
                pass
            [outcome] = context.prompts
            return outcome.mode, outcome.reason, dict(context.headers())["x-skim-reason"], outcome.estimate

        documents = np.random.default_rng(1).integers(3, 900, (9, 3000)).tolist()
        for document, size in zip(documents[:4], (3000, 500, 1500, 1000), strict=True):
            assert (await ask(document[:size]))[0] == "speculative"
        mode, reason, told, estimate = await ask(documents[4])
        assert (mode, reason) == ("speculative", "sooner")
        assert told == f"sooner;dense={estimate.dense:.0f};speculative={estimate.speculative:.0f}"
        assert (await ask(documents[5], enabled=False))[:3] == ("dense", "disabled", "disabled")
        assert (await ask([*documents[5], 8, 9, 10]))[:2] == ("dense", "cached")
        assert (await ask([*documents[5], 8, 9, 10], enabled="always"))[:3] == ("speculative", "requested", "requested")
        assert (await ask([*documents[5], *documents[6]]))[:2] == ("speculative", "sooner")
        ratios = dispatcher.meter.recorded["skim_router_forecast_ratio"]
        assert [tags["mode"] for _, tags in ratios] == ["speculative", "speculative", "dense", "speculative"]

    virtual_time.run(conversation())


async def test_the_forecast_uses_what_replicas_tell_of_themselves():
    pools = LocalPools(speculator={"cache_tokens": 1000}, target={"cache_tokens": 2000})
    pools.replicas = {"speculator": 2.0, "target": 1.5}.get
    pools.target = replace(pools.target, read_cost=ReadCost(2000.0, pair=1.0))
    forecaster = (await run(pools, prompt())).dispatcher.forecaster
    assert (forecaster.speculator.cost, forecaster.target.cost) == (pools.speculator.read_cost, pools.target.read_cost)
    assert (forecaster.read.capacity, forecaster.caches.dense.capacity, forecaster.caches.kept.capacity) == (
        2000,
        3000,
        3000,
    )


async def test_a_region_travels_with_its_rate_and_is_no_reason_to_keep_all():
    lines = 20 * f"{'a' * 19}\n"
    text = f"<user>{lines}</s><user>Why?</s>"
    spans = [
        Content(0, "user", lines, keep=0.5, spans=((6, 406),)),
        Content(1, "user", "Why?", spans=((416, 420),)),
    ]
    chat = prompt(
        IDS[: len(text)],
        chat=ChatContents(["user", "user"], spans),
        text=text,
        offsets=[(i, i + 1) for i in range(len(text))],
    )
    pools = LocalPools()
    ran = await run(pools, chat, keep_rate=1.0, protect_last=1)
    assert ran.outcome.reason == "requested"
    assert pools.selects[0].layout.rate_spans.tolist() == [[6, 406]]
    assert pools.selects[0].layout.rates.tolist() == [0.5]
    assert ran.dispatcher.log.get("r").explained.as_json()["rate_spans"] == [[6, 406, 0.5]]
    kept = pools.generates[0].prompt.positions
    assert ((kept >= 6) & (kept < 406)).sum() == 200
    assert (np.bincount((kept[(kept >= 6) & (kept < 406)] - 6) // 20) % 20 == 0).all()  # whole lines
    assert len(text) - kept.size == 400 - ((kept >= 6) & (kept < 406)).sum()


@pytest.mark.parametrize(
    ("sampling", "explicit", "drafted"),
    [
        ({}, False, True),
        ({"seed": 7}, False, False),
        ({"seed": 7, "temperature": 0.5}, False, False),
        ({"seed": 0, "temperature": 1.0}, False, False),
        ({"seed": 7, "temperature": 0.0}, False, True),
        ({"seed": None, "temperature": 1.0}, False, True),
        ({"seed": 7}, True, True),
    ],
)
async def test_a_seeded_prompt_gets_drafts_only_if_it_asks_for_them(sampling, explicit, drafted):
    """A greedy one needs no random numbers. The speculator then holds no session for it."""
    pools = LocalPools()
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), LocalMeter())
    options = PrefillOptions(enabled="always", min_prompt_tokens=256)
    context = CallState(Request(options, DecodeOptions(), decode_is_explicit=explicit))
    async for _ in dispatcher.run("r", prompt(sampling={**SAMPLING, **sampling}), context):
        pass
    assert pools.generates[0].decode.method == ("remote" if drafted else "none")
    assert (pools.generates[0].prompt.session is not None) == drafted


@pytest.mark.parametrize(("max_tokens", "drafted"), [(1, False), (2, False), (3, False), (4, True), (0, True)])
async def test_an_answer_too_short_for_drafts_of_a_session_has_none(max_tokens, drafted):
    """The first two tokens and the last one come without such drafts. 0: any number of tokens."""
    pools = LocalPools()
    await run(pools, prompt(sampling={"max_tokens": max_tokens or 5}, max_tokens=max_tokens))
    assert (pools.selects[0].decode is not None) == drafted
    assert (pools.generates[0].prompt.session is not None) == drafted
    assert bool(pools.speculator_engine.sessions) == drafted
