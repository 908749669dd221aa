"""The guard: which tasks it knows, and when it acts."""

from dataclasses import replace

import numpy as np
import pytest

from evals.guard.wordings import HELD_OUT, plain
from kv_transfer.options import DecodeOptions
from router.decision import guard
from router.decision.guard import needs_whole_text, whole_text_score
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PREFILL, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import InvalidRequestError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import prompt

DEFAULTS = PrefillOptions(min_prompt_tokens=256)
TEXT = "The bell of the square rang. " * 150
COUNTING = "How many times did the bell of the square ring?"
NEEDLE = "What is the price of the golden kettle?"


@pytest.mark.parametrize(
    "task",
    [
        "Translate the whole text into French.",
        "Rewrite the notes as a table.",
        "Fasse den ganzen Text zusammen.",
        "Combien de fois le mot compas apparaît-il ?",
        "把全文翻译成英文。",
        "物語の続きを書いて。",
        "Сравни все тарифы.",
        "List all places whose bell rang.",
        "How many of the orders are late?",
        "Question: List the cities with an office. Answer with the names only.",
        "Repeat section 4 word for word.",
        "Question: How many times did the bell of the square ring? Answer with one number in digits.",
        "TL;DR:",
        "A text.\nSummary:",
        "Below are the notes of a meeting.\nI need a German version of this.\nAnswer briefly.",
    ],
)
def test_a_whole_text_task_is_recognised_in_any_language(task):
    assert needs_whole_text(task)


@pytest.mark.parametrize(
    "question",
    [
        "How many employees does Acme have?",
        "How many days of notice does clause 9 require?",
        "Wie viele Mitarbeiter hat Acme?",
        "What does the summary say about staff costs?",
        "Who is responsible for the translation of the manual?",
        "¿Dónde está la lista de todos los proveedores?",
        "所有供应商的名单在哪里能找到?",
        "Who signed the lease?\nDo not quote the text. Cite the number of the passage that you used.",
        "Use the following pieces of context to answer the question at the end. If you don't know the answer, just say "
        "that you don't know.\nQuestion: Where was the second meeting held?\nAnswer:",
        NEEDLE,
        "What is the number of the dusty puzzle?",
        "Why does the test fail?",
        "",
        "?!...",
    ],
)
def test_a_question_about_a_spot_is_none_of_them(question):
    assert not needs_whole_text(question)


def test_each_sentence_counts_alone():
    task, answer = "Translate everything into French.", "Answer in one word."
    assert whole_text_score(f"{answer}\n{task}\n{answer * 3}") == pytest.approx(whole_text_score(task))
    assert whole_text_score(answer) < 0
    assert whole_text_score("") == whole_text_score("?! 12 ...") == -np.inf


def test_of_a_long_task_both_ends_are_read(monkeypatch):
    read = []
    monkeypatch.setattr(guard, "_character_grams", lambda sentences: read.append(sentences) or [])
    monkeypatch.setattr(guard, "_word_grams", lambda sentences: [(np.zeros(1, int), np.zeros(1, int))])
    whole_text_score("begin " + "word " * 10**5 + "end")
    [words] = [[word for sentence in sentences for word in sentence] for sentences in read]
    assert (words[0], words[-1]) == ("begin", "end")
    assert len(words) <= guard.MOST_CHARS


HELD_OUT_TASKS, HELD_OUT_QUESTIONS = 0.93, 0.03


def test_the_held_out_wordings_get_the_share_that_the_docs_state():
    verdicts = {True: [], False: []}
    for wording in plain(HELD_OUT):
        verdicts[wording.whole].append(needs_whole_text(wording.text))
    assert {whole: len(found) for whole, found in verdicts.items()} == {True: 600, False: 600}
    assert np.mean(verdicts[True]) > HELD_OUT_TASKS
    assert np.mean(verdicts[False]) < HELD_OUT_QUESTIONS


COMMANDS = (
    "Please reserve a double room at the Harbour Inn for two nights.",
    "Ask support to call me back about invoice 4417.",
    "Put the keyboard on hold until my card arrives.",
    "Withdraw the complaint that I filed yesterday.",
    "Ship the order of the customer from Ghent.",
    "Tell Lena that the parcel is at the reception.",
    "Switch the thermostat in the bedroom to 19 degrees.",
    "Make a folder `exports` next to `imports`.",
    "Append a line with today's date to `journal.md`.",
    "Get the stock price of Borealis and buy ten shares if it is under 50.",
    "Go back to page 3, then call `refund_order` for the order with the broken lamp.",
    "Fix the off-by-one error in `page_count`.",
    "Let the driver know that gate 4 is closed.",
    "Extend my rental car by one day.",
    "Unsubscribe me from the newsletter.",
    "Revert the last commit.",
    "Bestelle zwei Karten für das Konzert am Freitag.",
    "Sag dem Fahrer, dass Tor 4 geschlossen ist.",
    "Prolonge ma location d'un jour.",
    "Pide un taxi para las seis.",
    "把会议室预订到下午三点。",
    "タクシーを六時に呼んでください。",
)
"""Requests to an agent for one thing. The training knows none of them."""


def test_a_command_to_an_agent_is_seldom_a_task_for_the_whole_text():
    """Before the training knew commands, 12 of these ran dense."""
    assert sum(needs_whole_text(command) for command in COMMANDS) <= 9


def test_without_the_classifier_most_of_them_are_missed(monkeypatch):
    """Negative control."""
    monkeypatch.setattr("router.decision.guard.whole_text_score", lambda text: -np.inf)
    assert np.mean([needs_whole_text(wording.text) for wording in plain(HELD_OUT) if wording.whole]) < 0.1


def asking(question):
    """A long text and a question, one token for each character."""
    text = f"{TEXT}\n{question}"
    ids, offsets = [7 + ord(c) for c in text], [(i, i + 1) for i in range(len(text))]
    return prompt(ids, text=text, offsets=offsets, sampling={"max_tokens": 4, "temperature": 0.0})


def small_pools():
    return LocalPools(target={"max_model_len": 8192}, speculator={"max_model_len": 8192})


async def run(question, guard=True, options=None):
    """The outcome of one chat, the requests of both pools, and the guard's counts. options: of the request."""
    pools, meter = small_pools(), LocalMeter()
    dispatcher = Dispatcher(pools, DEFAULTS, SpeculationOptions(), RouterConfig(guard=guard), meter)
    context = CallState(Request(PREFILL.resolve(DEFAULTS, None, options), DecodeOptions()))
    async for _ in dispatcher.run("r", asking(question), context):
        pass
    counts = [tuple(tags.values()) for _, tags in meter.recorded.get("skim_router_guard_total", [])]
    return context.prompts[0], pools, counts


async def test_a_counting_question_runs_dense():
    outcome, pools, counts = await run(COUNTING)
    assert (outcome.mode, outcome.reason, outcome.keep_rate) == ("dense", "guard-whole-text", 1.0)
    assert pools.selects == []
    assert pools.generates[0].prompt.is_dense
    assert counts == [("dense", "whole-text")]


async def test_without_the_guard_it_is_compressed():
    """Negative control."""
    outcome, pools, counts = await run(COUNTING, guard=False)
    assert (outcome.mode, outcome.reason) == ("speculative", "unmeasured")
    assert not pools.generates[0].prompt.is_dense
    assert counts == []


class Reading:
    """A question text that counts its readers."""

    def __init__(self, monkeypatch):
        self.count = 0
        task_text = RenderedPrompt.task_text

        def read(*asked):
            self.count += 1
            return task_text(*asked)

        monkeypatch.setattr(RenderedPrompt, "task_text", read)


@pytest.mark.parametrize(
    ("options", "readers"), [(None, 1), (False, 0), ({"min_prompt_tokens": 100_000}, 0), ({"protect_last": 4096}, 1)]
)
async def test_a_prompt_that_runs_dense_anyway_gets_no_advice(monkeypatch, options, readers):
    reading = Reading(monkeypatch)
    outcome, _, _ = await run(COUNTING, options=options)
    assert (outcome.mode, reading.count) == ("dense", readers)


@pytest.mark.parametrize("sampling", [{"bad_words": ["x"] * 2000}, {"structured_outputs": {"regex": "(" * 2000}}])
async def test_a_prompt_that_is_refused_costs_neither_spans_nor_advice(monkeypatch, sampling):
    reading, pools = Reading(monkeypatch), small_pools()
    monkeypatch.setattr(RenderedPrompt, "spans", lambda *args: pytest.fail("spans of a bad prompt"))
    dispatcher = Dispatcher(pools, DEFAULTS, SpeculationOptions(), RouterConfig(), LocalMeter())
    call = CallState(Request(PREFILL.resolve(DEFAULTS, None, None), DecodeOptions()))
    prompt = asking(COUNTING)
    for changed in (replace(prompt, sampling=sampling), replace(prompt, max_tokens=10**6)):
        with pytest.raises(InvalidRequestError):
            await anext(dispatcher.run("r", changed, call))
    assert (reading.count, pools.generates) == (0, [])


async def test_another_question_is_compressed():
    outcome, _, counts = await run(NEEDLE)
    assert (outcome.mode, outcome.reason) == ("speculative", "unmeasured")
    assert counts == [("compressed", "none")]


@pytest.mark.parametrize(
    "options",
    ["always", {"enabled": "always"}, {"keep_rate": 0.3}, {"coverage": 0.5}, {"keep_rate": "auto", "max_keep": 0.3}],
)
async def test_an_explicit_wish_is_obeyed(options):
    outcome, _, counts = await run(COUNTING, options=options)
    assert outcome.mode == "speculative"
    assert counts == []


@pytest.mark.parametrize(
    "options", [None, "auto", {"look_ahead": 0}, {"protect_last": 64}, {"keep_rate": "auto"}, {"min_keep": 0.2}]
)
async def test_options_that_do_not_say_how_much_are_no_wish(options):
    outcome, _, _ = await run(COUNTING, options=options)
    assert outcome.reason == "guard-whole-text"
