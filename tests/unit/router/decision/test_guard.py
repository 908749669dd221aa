"""The guard: which questions it knows, when it acts, and what a distrusted prompt gets."""

from dataclasses import replace

import numpy as np
import pytest

from evals.guard.wordings import HELD_OUT, plain
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import DecodeOptions, SelectionOptions
from router.decision import whole_text
from router.decision.guard import FEW_UNITS, MORE, QUESTIONS, Guard, keeping_more, signals, task_kind
from router.decision.whole_text import whole_text_score
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PREFILL, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.protected_spans import task_text
from skim_common.errors import InvalidRequestError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt

DEFAULTS = PrefillOptions(min_prompt_tokens=256)
TEXT = "The bell of the square rang. " * 150
COUNTING = "How many times did the bell of the square ring?"
LISTING = "What are all the values of the price of the kettle?"
NEEDLE = "What is the price of the golden kettle?"


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (COUNTING, "counting"),
        ("How often is the timeout set?", "counting"),
        ("How many of the orders are late?", "counting"),
        ("Who won a game of chess most often?", "counting"),
        ("What is the total number of orders in this table?", "counting"),
        ("Please count the rows of the result.", "counting"),
        ("Question: List the cities with an office. Answer with the names only.", "listing"),
        ("A text. \n \n  please list the cities", "listing"),
        ("What are all the values of the price of the kettle?", "listing"),
        ("Find every function that raises ValueError", "listing"),
        ("Quote what Captain Brandt wrote.", "quoting"),
        ("Repeat section 4 word for word.", "quoting"),
        ("What is the exact wording of the second clause?", "quoting"),
        ("Copy the paragraph about refunds exactly.", "quoting"),
    ],
)
def test_a_question_is_recognised_by_its_words(question, kind):
    assert next((k.name for k in QUESTIONS if k.matches(question)), "") == kind


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
        "Below are the notes of a meeting.\nI need a German version of this.\nAnswer briefly.",
    ],
)
def test_a_whole_text_task_is_recognised_in_any_language(task):
    assert (kind := task_kind(task)) is not None
    assert kind.verdict == "dense"


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
        "",
        "?!...",
    ],
)
def test_a_question_about_a_spot_is_none_of_them(question):
    assert task_kind(question) is None


@pytest.mark.parametrize(
    "question",
    [
        NEEDLE,
        "What is the number of the dusty puzzle?",
        "What does the function quote_plus return by default?",
        "In the function shuffle, what is the default of the parameter random?",
        "Which account number belongs to this listing?",
        "Why does the test fail?",
        "The \n shopping list",
        "",
    ],
)
def test_other_questions_are_not(question):
    assert [kind.name for kind in QUESTIONS if kind.matches(question)] == []


def test_each_sentence_counts_alone():
    task, answer = "Translate everything into French.", "Answer in one word."
    assert whole_text_score(f"{answer}\n{task}\n{answer * 3}") == pytest.approx(whole_text_score(task))
    assert whole_text_score(answer) < 0
    assert whole_text_score("") == whole_text_score("?! 12 ...") == -np.inf


def test_of_a_long_task_both_ends_are_read(monkeypatch):
    read = []
    monkeypatch.setattr(whole_text, "_character_grams", lambda sentences: read.append(sentences) or [])
    monkeypatch.setattr(whole_text, "_word_grams", lambda sentences: [(np.zeros(1, int), np.zeros(1, int))])
    whole_text_score("begin " + "word " * 10**5 + "end")
    [words] = [[word for sentence in sentences for word in sentence] for sentences in read]
    assert (words[0], words[-1]) == ("begin", "end")
    assert len(words) <= whole_text.MOST_CHARS


HELD_OUT_TASKS, HELD_OUT_QUESTIONS = 0.93, 0.03


def test_the_held_out_wordings_get_the_share_that_the_docs_state():
    verdicts = {True: [], False: []}
    for wording in plain(HELD_OUT):
        kind = task_kind(wording.text)
        verdicts[wording.whole].append(kind is not None and kind.verdict == "dense")
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
    assert sum(task_kind(command) is not None for command in COMMANDS) <= 9


def test_without_the_classifier_most_of_them_are_missed(monkeypatch):
    """Negative control."""
    monkeypatch.setattr("router.decision.guard.whole_text_score", lambda text: -np.inf)
    assert np.mean([task_kind(wording.text) is not None for wording in plain(HELD_OUT) if wording.whole]) < 0.1


def asking(question):
    """A long text and a question, one token for each character."""
    text = f"{TEXT}\n{question}"
    ids, offsets = [7 + ord(c) for c in text], [(i, i + 1) for i in range(len(text))]
    return prompt(ids, text=text, offsets=offsets, sampling={"max_tokens": 4, "temperature": 0.0})


class ScoredPools(LocalPools):
    """Pools whose selections have given chunk scores."""

    def __init__(self, scores=None):
        super().__init__(target={"max_model_len": 8192}, speculator={"max_model_len": 8192})
        self.scores = scores

    async def select(self, request, *_):
        selection = await super().select(request)
        if self.scores is None:
            return replace(selection, unit_scores=1.0 / (1 + np.arange(selection.unit_scores.size, dtype=np.float32)))
        return replace(selection, unit_scores=np.full_like(selection.unit_scores, self.scores))


async def run(question, pools=None, guard=True, options=None, entropy=0.97):
    """The outcome of one chat, the requests of both pools, and the guard's counts. options: of the request."""
    pools, meter = pools or ScoredPools(), LocalMeter()
    dispatcher = Dispatcher(
        pools, DEFAULTS, SpeculationOptions(), RouterConfig(guard=guard, guard_entropy=entropy), meter
    )
    context = CallState(Request(PREFILL.resolve(DEFAULTS, None, options), DecodeOptions()))
    async for _ in dispatcher.run("r", asking(question), context):
        pass
    counts = [tuple(tags.values()) for _, tags in meter.recorded.get("skim_router_guard_total", [])]
    return context.prompts[0], pools, counts


async def test_a_counting_question_runs_dense():
    outcome, pools, counts = await run(COUNTING)
    assert (outcome.mode, outcome.reason, outcome.keep_rate) == ("dense", "guard-counting", 1.0)
    assert pools.selects == []
    assert pools.generates[0].prompt.is_dense
    assert counts == [("dense", "counting")]


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
        monkeypatch.setattr("router.prompt.rendered.task_text", self.read)

    def read(self, *args):
        self.count += 1
        return task_text(*args)


@pytest.mark.parametrize(
    ("options", "readers"), [(None, 1), (False, 0), ({"min_prompt_tokens": 100_000}, 0), ({"protect_last": 4096}, 1)]
)
async def test_a_prompt_that_runs_dense_anyway_gets_no_advice(monkeypatch, options, readers):
    reading = Reading(monkeypatch)
    outcome, _, _ = await run(COUNTING, options=options)
    assert (outcome.mode, reading.count) == ("dense", readers)


@pytest.mark.parametrize("sampling", [{"bad_words": ["x"] * 2000}, {"structured_outputs": {"regex": "(" * 2000}}])
async def test_a_prompt_that_is_refused_costs_neither_spans_nor_advice(monkeypatch, sampling):
    reading, pools = Reading(monkeypatch), ScoredPools()
    monkeypatch.setattr("router.prompt.rendered.prompt_spans", lambda *args: pytest.fail("spans of a bad prompt"))
    dispatcher = Dispatcher(pools, DEFAULTS, SpeculationOptions(), RouterConfig(), LocalMeter())
    call = CallState(Request(PREFILL.resolve(DEFAULTS, None, None), DecodeOptions()))
    prompt = asking(COUNTING)
    for changed in (replace(prompt, sampling=sampling), replace(prompt, max_tokens=10**6)):
        with pytest.raises(InvalidRequestError):
            await anext(dispatcher.run("r", changed, call))
    assert (reading.count, pools.generates) == (0, [])


async def test_a_listing_question_keeps_more():
    outcome, pools, counts = await run(LISTING)
    assert (outcome.mode, outcome.explained) == ("speculative", "unmeasured;guard=listing")
    assert outcome.keep_rate >= MORE
    assert pools.selects[0].options.min_keep == MORE
    assert counts == [("more", "listing")]
    plain, pools, _ = await run(LISTING, guard=False)
    assert (plain.explained, pools.selects[0].options.min_keep) == ("unmeasured", SelectionOptions().min_keep)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"keep_rate": 0.1}, {"keep_rate": MORE}),
        ({"keep_rate": 0.7}, {"keep_rate": 0.7}),
        ({"keep_rate": "auto"}, {"keep_rate": "auto", "min_keep": MORE, "largest_share": 0.5}),
        ({"keep_rate": "auto", "max_keep": 0.2}, {"keep_rate": "auto", "min_keep": MORE, "largest_share": MORE}),
        ({"coverage": 0.3}, {"keep_rate": "auto", "coverage": 0.3, "min_keep": MORE}),
    ],
)
def test_more_is_a_lower_bound(options, changed):
    more = keeping_more(PrefillOptions(**options))
    assert {name: getattr(more, name) for name in changed} == changed


async def test_another_question_is_compressed():
    outcome, _, counts = await run(NEEDLE)
    assert (outcome.mode, outcome.reason) == ("speculative", "unmeasured")
    assert counts == [("compressed", "none")]


@pytest.mark.parametrize(
    "options",
    ["always", {"enabled": "always"}, {"keep_rate": 0.3}, {"coverage": 0.5}, {"keep_rate": "auto", "max_keep": 0.3}],
)
async def test_an_explicit_wish_is_obeyed(options):
    outcome, _, counts = await run(COUNTING, pools=ScoredPools(scores=1.0), options=options)
    assert outcome.mode == "speculative"
    assert counts == []


@pytest.mark.parametrize(
    "options", [None, "auto", {"look_ahead": 0}, {"protect_last": 64}, {"keep_rate": "auto"}, {"min_keep": 0.2}]
)
async def test_options_that_do_not_say_how_much_are_no_wish(options):
    outcome, _, _ = await run(COUNTING, options=options)
    assert outcome.reason == "guard-counting"


async def test_flat_scores_run_dense_and_leave_no_session():
    pools = ScoredPools(scores=1.0)
    outcome, pools, counts = await run(NEEDLE, pools=pools)
    assert (outcome.mode, outcome.reason, outcome.kept_tokens) == ("dense", "guard-flat", outcome.prompt_tokens)
    assert (outcome.coverage, outcome.reused_tokens) == (1.0, 0)
    assert len(pools.selects) == 1
    assert [request.prompt.is_dense for request in pools.generates] == [True]
    assert pools.generates[0].prompt.session is None
    assert counts == [("dense", "flat")]
    await until(lambda: not pools.speculator_engine.sessions)


async def test_without_a_limit_flat_scores_are_not_judged():
    outcome, _, counts = await run(NEEDLE, pools=ScoredPools(scores=1.0), entropy=None)
    assert outcome.mode == "speculative"
    assert counts == [("compressed", "none")]


def selection(scores, kept=(), size=32):
    tokens = len(scores) * size
    positions = np.array([*kept, tokens - 1], np.int32)
    kept_prompt = KeptPrompt(positions, positions, tokens)
    return Selection(kept_prompt, 0.5, unit_scores=np.array(scores, np.float32))


def spans(*pairs):
    return layout_of(pairs)


def test_the_entropy_of_equal_scores_is_one():
    options = PrefillOptions(protect_last=1)
    flat = signals(selection([2.0] * 20), options, spans())
    assert flat["entropy"] == pytest.approx(1)
    peaked = signals(selection([100.0] + [1e-3] * 19), options, spans())
    assert peaked["entropy"] < 0.1


def test_protected_chunks_do_not_count():
    options = PrefillOptions(protect_last=1)
    scores = [100.0] + [1.0] * 20
    assert signals(selection(scores), options, spans())["entropy"] < 0.7
    assert signals(selection(scores), options, spans((0, 32)))["entropy"] == pytest.approx(1)


def test_coverage_is_the_kept_share_of_the_scores():
    options = PrefillOptions(protect_last=1)
    scores = [6.0, 2.0] + [1.0] * 8
    found = signals(selection(scores, kept=range(64)), options, spans((319, 320)))
    # The last chunk has the last token, which is protected, and 31 others, of which none is kept.
    assert found["coverage"] == pytest.approx(8 / 16)


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (selection([1.0] * (FEW_UNITS - 1)), {}),
        (selection([0.0] * 20), {}),
        (selection([1.0] * 20), {"granularity": "token"}),
        (replace(selection([1.0] * 20), unit_scores=None), {}),
    ],
    ids=["few chunks", "no scores", "single tokens", "an older speculator"],
)
def test_without_enough_scores_there_are_no_signals(found, options):
    options = PrefillOptions(protect_last=1, **options)
    assert signals(found, options, spans()) == {}
    guard = Guard(LocalMeter(), enabled=True, entropy=0.97)
    advice = guard.advise(PREFILL.resolve(DEFAULTS, None, None), NEEDLE)
    assert guard.distrusts(replace(advice, options=options), found, spans()) is None
