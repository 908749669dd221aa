"""Ageing over mock engines in virtual time: what the target reads of a conversation whose results of tools get old."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.harness import virtual_time
from kv_transfer.options import DecodeOptions
from router.decision.guard import task_kind
from router.dispatch import ageing
from router.dispatch.losses import losses_of
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions
from skim_common.errors import SkimError
from tests.unit.router.chats import Chat, result
from tests.unit.router.conftest import until
from tests.unit.router.dispatch.test_catch_up import GREEDY, Pools, a_dispatcher, ended, is_read, settled, simulated

AGE = {"turns": 3, "keep": 0.25}


async def turn(dispatcher, chat, name="r", *, salt="salt", **options):
    """One turn: its answer is added to the chat."""
    asked = {"min_prompt_tokens": 256, "lexical_weight": 0.0, "age": AGE, **options}  # words are scored in a thread
    call = CallState(Request(PrefillOptions(**asked), DecodeOptions(method="none"), later_requests=1))
    rendered = chat.rendered()
    outputs = [one async for one in dispatcher.run(name, Prompt(rendered, GREEDY, 4, cache_salt=salt), call)]
    answer = [token for one in outputs for token in one.completions[0].token_ids.tolist()]
    chat.answered(answer)
    [sent] = [one for one in dispatcher.pools.generates if one.request_id.startswith(f"{name}~") and not is_read(one)]
    return SimpleNamespace(
        outcome=call.prompts[0],
        headers=dict(call.headers()),
        losses=losses_of(call),
        cached=outputs[0].cached_tokens,
        prompt=sent.prompt,
        ids=rendered.token_ids,
    )


async def rested(dispatcher):
    await asyncio.sleep(20)
    assert not dispatcher.catch_ups._running
    assert not dispatcher.catch_ups._waiting


async def an_aged_chat(dispatcher, task="Which row holds the value 37?", **options):
    """A conversation whose first result has just aged, before its third turn."""
    chat = Chat().add("user", task).add("assistant", "I look.").add("tool", result(1))
    for number, question in enumerate(("And which row holds 74?", "Which row holds 111?"), 1):
        await turn(dispatcher, chat, f"turn {number}", **options)
        await rested(dispatcher)
        chat.add("user", question)
    return chat


def dropped_of(found):
    return np.setdiff1d(np.arange(found.ids.size), found.prompt.positions)


def a_long_dispatcher(pools=None):
    pools = pools or Pools(max_model_len=32_768)
    return a_dispatcher(pools), pools


@simulated
async def test_the_next_turn_reads_what_is_left_of_an_old_result_and_all_else():
    dispatcher, pools = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    before = len(pools.selects)
    third = await turn(dispatcher, chat, "third")
    assert (third.headers["x-skim-mode"], third.headers["x-skim-reason"]) == ("speculative", "aged")
    assert len(pools.selects) == before, "it is selected in idle time"
    start, end = chat.span(2)
    dropped, kept = dropped_of(third), third.prompt.positions
    assert dropped.min() >= start
    assert dropped.max() < end
    share = 1 - dropped.size / (end - start)
    assert AGE["keep"] <= share < AGE["keep"] + 0.05
    assert third.prompt.token_ids.tolist() == third.ids[kept].tolist()
    assert third.prompt.context_length == third.ids.size
    # It had all but the new question in its cache.
    assert third.cached >= third.prompt.token_ids.size - 128
    # What a client is told.
    assert third.headers["x-skim-kept-tokens"] == str(kept.size)
    assert int(third.headers["x-skim-reused-tokens"]) == int((kept < end).sum())
    assert 0 < float(third.headers["x-skim-coverage"]) < 1
    assert third.headers["x-skim-catch-up"].startswith("caught-up;tokens=")
    assert third.losses == {
        "kept_tokens": kept.size,
        "dropped_tokens": dropped.size,
        "largest_dropped": {"role": "tool", "tokens": dropped.size},
    }
    counted = [tags for _, tags in dispatcher.meter.recorded["skim_router_requests_total"]]
    assert counted[-1] == {"mode": "speculative", "reason": "aged"}
    shown = dispatcher.selections.get("third").as_json()
    assert (shown["decision"]["reason"], shown["kept_tokens"]) == ("aged", kept.size)
    assert dispatcher.catch_ups._live.others([], 0) == kept.size, "what it needs of the cache"


@pytest.mark.parametrize("protects", [True, False])
def test_what_a_call_named_stays_within_the_share(protects, monkeypatch):
    """The negative control: without the protection these rows rank too low."""
    rows = [1005, 1018, 1033, 1047]

    async def run():
        if not protects:
            monkeypatch.setattr(ageing, "cited_spans", lambda *args: [])
        dispatcher, _ = a_long_dispatcher()
        chat = Chat().add("user", "Which rows?").add("tool", result(1)).add("called", f'{{"rows": {rows}}}')
        for number in range(2):
            await turn(dispatcher, chat.add("user", "Why?"), f"turn {number}")
            await rested(dispatcher)
        third = await turn(dispatcher, chat.add("user", "So?"), "third")
        assert third.outcome.reason == "aged"
        text, kept = chat.rendered().text, np.isin(np.arange(third.ids.size), third.prompt.positions)
        places = [text.index(f"row {row}") for row in rows]
        held = [bool(kept[place : text.index("\n", place)].all()) for place in places]
        assert all(held) == protects
        start, end = chat.span(1)
        assert AGE["keep"] <= kept[start:end].mean() < AGE["keep"] + 0.05

    virtual_time.run(run())


@simulated
async def test_without_the_option_nothing_ages():
    """The negative control."""
    dispatcher, _ = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher, age=None)
    third = await turn(dispatcher, chat, "third", age=None)
    assert third.prompt.is_dense
    assert third.losses["dropped_tokens"] == 0


@simulated
async def test_what_was_asked_since_chooses_what_is_left():
    dispatcher, pools = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    aged = pools.selects[-1]
    assert aged.options.reuse == "off"
    assert aged.decode is None
    rated = chat.span(2)
    assert [(start, end) for start, end, _ in aged.layout.regions] == [rated]
    assert [rate for *_, rate in aged.layout.regions] == [AGE["keep"]]
    assert (~aged.droppable).sum() == aged.size - (rated[1] - rated[0])
    assert aged.layout.questions[0, 0] >= rated[1]
    assert aged.layout.questions[-1].tolist() == list(chat.span(4))


@simulated
async def test_the_reads_are_of_what_is_left():
    dispatcher, pools = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    reads = [one for one in pools.generates if is_read(one)]
    third = await turn(dispatcher, chat, "third")
    last = reads[-1].prompt
    assert last.token_ids.tolist() == third.prompt.token_ids[: last.token_ids.size].tolist()
    assert last.positions.tolist() == third.prompt.positions[: last.token_ids.size].tolist()
    assert not reads[-1].scored
    assert ended(dispatcher) == ["done", "done"]


@simulated
async def test_a_result_ages_once_and_the_kept_tokens_of_later_turns_begin_alike():
    dispatcher, _ = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    chat.add("assistant", "I look again.").add("tool", result(2)).add("user", "Which row holds 148?")
    earlier = None
    for number in range(5):
        found = await turn(dispatcher, chat, f"later {number}")
        await rested(dispatcher)
        assert found.headers["x-skim-reason"] == "aged"
        if earlier is not None:
            start = chat.span(8)[0]
            kept, known = (one.prompt.positions for one in (found, earlier))
            assert kept[kept < start].tolist() == known[known < start].tolist()
        earlier = found
        chat.add("user", f"And which holds {number}?")
    first, second = chat.span(2), chat.span(8)
    dropped = dropped_of(earlier)
    assert ((dropped >= second[0]) & (dropped < second[1])).any()
    assert (((dropped >= first[0]) & (dropped < first[1])) | ((dropped >= second[0]) & (dropped < second[1]))).all()
    assert earlier.cached >= earlier.prompt.token_ids.size - 128


@pytest.mark.parametrize(
    "options",
    [
        {"lossy": "refuse"},
        {"enabled": False},
        {"age": None, "enabled": False},
        {"keep_rate": 1.0},
        {"protect_tools": ["search"], "enabled": False},
        {"protected_spans": [[0, 1900]], "keep_rate": 1.0},
    ],
)
def test_these_run_on_the_whole_prompt(options):
    async def run():
        dispatcher, _ = a_long_dispatcher()
        chat = await an_aged_chat(dispatcher)
        other = await turn(dispatcher, chat.copy(), "whole", **options)
        assert other.prompt.is_dense
        assert (await turn(dispatcher, chat, "third")).headers["x-skim-reason"] == "aged"

    virtual_time.run(run())


@pytest.mark.parametrize("case", ["salt", "age", "changed", "young", "protected"])
def test_another_conversation_or_another_rule_finds_no_aged_form(case):
    async def run():
        dispatcher, _ = a_long_dispatcher()
        chat = await an_aged_chat(dispatcher)
        span = chat.span(2)
        options = {
            "salt": {"salt": "another"},
            "age": {"age": {"turns": 3, "keep": 0.5}},
            "protected": {"protected_spans": [list(span)]},
        }.get(case, {})
        if case == "changed":
            role, text, ids, tool = chat.messages[0]
            chat.messages[0] = role, text.replace("37", "38"), ids, tool
        if case == "young":
            chat.messages[3:] = [("user", " " + "Why? " * 60, None, None)]
        found = await turn(dispatcher, chat, "other", **options)
        assert found.outcome.reason != "aged"
        assert found.outcome.form is None

    virtual_time.run(run())


@simulated
async def test_of_two_conversations_with_one_beginning_one_ages():
    dispatcher, _ = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    other = chat.copy()
    other.messages[-1] = ("user", "Something else?", None, None)
    plain = await turn(dispatcher, other, "other", age=None)
    assert plain.prompt.is_dense
    assert (await turn(dispatcher, chat, "third")).headers["x-skim-reason"] == "aged"


@simulated
async def test_a_turn_that_comes_in_mid_ageing_runs_as_without_it():
    pools = Pools(max_model_len=32_768, prefill_ms_per_token=1.0)
    dispatcher, _ = a_long_dispatcher(pools)
    chat = Chat().add("user", "Which row holds 37?").add("assistant", "I look.").add("tool", result(1))
    await turn(dispatcher, chat, "first")
    await rested(dispatcher)
    chat.add("user", "And 74?")
    asked, selects = pools.asked, len(pools.selects)
    await turn(dispatcher, chat, "second")
    await until(lambda: pools.asked > asked)
    assert len(pools.selects) > selects
    chat.add("user", "And 111?")
    third = await turn(dispatcher, chat, "third")
    assert ended(dispatcher) == ["done", "next-turn"]
    assert third.prompt.is_dense
    await rested(dispatcher)
    chat.add("user", "And 148?")
    assert (await turn(dispatcher, chat, "fourth")).headers["x-skim-reason"] == "aged"


@simulated
async def test_load_ends_the_selection_and_it_is_asked_for_again():
    dispatcher, pools = a_long_dispatcher()
    chat = Chat().add("user", "Which row holds 37?").add("assistant", "I look.").add("tool", result(1))
    await turn(dispatcher, chat, "first")
    await rested(dispatcher)
    select, begun = pools.select, []

    async def slow(request, *others):
        begun.append(request)
        await asyncio.sleep(1.0)
        return await select(request, *others)

    pools.select = slow
    await turn(dispatcher, chat.add("user", "And 74?"), "second")
    await until(lambda: begun)
    dispatcher.catch_ups.hold()
    await settled(dispatcher, 2)
    assert ended(dispatcher) == ["done", "done"]
    assert len(begun) == 2
    assert (await turn(dispatcher, chat.add("user", "And 111?"), "third")).headers["x-skim-reason"] == "aged"


@simulated
async def test_without_a_selection_nothing_ages():
    dispatcher, pools = a_long_dispatcher()
    chat = Chat().add("user", "Which row holds 37?").add("assistant", "I look.").add("tool", result(1))
    await turn(dispatcher, chat, "first")
    await rested(dispatcher)
    pools.select_error = SkimError("no speculator")
    await turn(dispatcher, chat.add("user", "And 74?"), "second")
    await rested(dispatcher)
    assert ended(dispatcher) == ["done", "done"]
    assert len(dispatcher.meter.recorded["skim_router_audits_total"]) == 1, "a dense answer is not measured"
    assert (await turn(dispatcher, chat.add("user", "And 111?"), "third")).prompt.is_dense


@simulated
async def test_an_evicted_form_is_computed_again():
    dispatcher, pools = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    pools.target_engine.compute.cache.__init__(2**20)
    third = await turn(dispatcher, chat, "third")
    assert third.headers["x-skim-reason"] == "aged"
    assert third.cached == 0
    assert dropped_of(third).size


@simulated
async def test_a_turn_with_much_new_text_is_skimmed_and_read_in_its_aged_form():
    dispatcher, pools = a_long_dispatcher()
    chat = await an_aged_chat(dispatcher)
    fresh = await turn(dispatcher, chat.add("tool", result(3, 270)).add("user", "Which row holds 5?"), "fresh")
    assert fresh.outcome.mode == "speculative"
    assert fresh.outcome.reason != "aged"
    await rested(dispatcher)
    last = [one for one in pools.generates if is_read(one)][-1].prompt
    start, end = chat.span(2)
    assert not last.is_dense
    assert ((last.positions >= start) & (last.positions < end)).sum() < (end - start) / 2
    later = await turn(dispatcher, chat.add("user", "And 6?"), "later")
    assert later.headers["x-skim-reason"] == "aged"
    assert later.cached >= later.prompt.token_ids.size - 128


@simulated
async def test_the_reads_of_a_long_session_are_bounded_by_what_is_dropped():
    dispatcher, pools = a_long_dispatcher()
    chat, reads = Chat().add("user", "Which row holds 37?"), []
    for number in range(9):
        chat.add("tool", result(number, 42))
        found = await turn(dispatcher, chat, f"step {number}")
        before = pools.asked
        await rested(dispatcher)
        reads.append(pools.asked > before)
    assert found.headers["x-skim-reason"] == "aged"
    assert reads.count(True) < 7, "some results age together"
    read = sum(value for value, _ in dispatcher.meter.recorded["skim_router_catch_up_tokens_total"])
    assert read <= 2.2 * dropped_of(found).size


@pytest.mark.parametrize("audit_share", [0.0, 1.0])
def test_a_measurement_reads_the_whole_text(audit_share):
    """Without one, results that are old already age after the first answer."""

    async def run():
        pools = Pools(max_model_len=32_768)
        dispatcher = a_dispatcher(pools, audit_share=audit_share)
        chat = Chat().add("user", "Look.").add("tool", result(1)).add("assistant", "Yes.").add("user", "Why?")
        first = await turn(dispatcher, chat, "first")
        await rested(dispatcher)
        reads = [one for one in pools.generates if is_read(one)]
        assert first.headers["x-skim-catch-up"] == f"planned;reason={'audit' if audit_share else 'later-requests'}"
        assert all(one.prompt.is_dense for one in reads) == bool(audit_share)
        assert bool(reads[-1].scored) == bool(audit_share)

    virtual_time.run(run())


@pytest.mark.parametrize(
    ("question", "ages"), [("Which row holds 5?", True), ("Translate all of the rows into French.", False)]
)
def test_a_task_that_needs_the_whole_text_gets_it_if_it_comes_after_the_result(question, ages):
    """A task before the results, as agents have it, is one for what they find."""
    task = "Summarise all of the files."

    async def run():
        assert task_kind(task).verdict == "dense"
        dispatcher, _ = a_long_dispatcher()
        chat = await an_aged_chat(dispatcher, task)
        chat.messages[-1] = ("user", question, None, None)
        third = await turn(dispatcher, chat, "third")
        assert (third.outcome.reason == "aged") == ages
        assert third.prompt.is_dense == (not ages)

    virtual_time.run(run())
