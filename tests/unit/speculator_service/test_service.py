import asyncio
import math
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import ModelInfo
from speculator_service import reading as read_module
from speculator_service import service as service_module
from speculator_service.engine import Scores
from speculator_service.reading import INLINE_TOKENS, Reading
from speculator_service.selection.extension import extend
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import layout_of, relaid
from tests.unit.speculator_service.reading.asking import asking as in_windows

INFO = ModelInfo("m", "LlamaForCausalLM", 1024, "f", max_model_len=50, max_position=50, engine="script")


class ScriptedEngine:
    """Returns fixed scores."""

    info = INFO
    supports_drafts = True

    def __init__(self, importance, look_ahead_tokens=()):
        self.scores = Scores(
            np.array(importance, np.float32), list(look_ahead_tokens), {"queue": 1.0, "speculate": 2.0}
        )
        self.calls = 0
        self.asked = None

    async def score(self, asked):
        self.calls += 1
        self.asked = asked
        return self.scores


async def test_selection_of_a_scored_prompt(make_request):
    # Kept are [0, 1, 3, 6, 7] and the last token. The next token has position 10, no matter what was dropped.
    service = SpeculatorService(ScriptedEngine([0.9, 0.8, 0, 0.7, 0, 0, 0.6, 0.5, 0, 0.1], [41, 42]))
    selection = await service.select(
        make_request(range(100, 110), keep_rate=0.5, granularity="token", protect_last=1, look_ahead=2)
    )
    kept = selection.kept
    assert kept.positions.tolist() == [0, 1, 3, 6, 7, 9]
    assert kept.token_ids.tolist() == [100, 101, 103, 106, 107, 109]
    assert kept.context_length == 10
    assert kept.look_ahead_tokens.tolist() == [41, 42]
    assert kept.positions.dtype == kept.token_ids.dtype == kept.look_ahead_tokens.dtype == np.int32
    assert kept.session is None
    assert selection.coverage == pytest.approx(1.0)
    assert selection.importance is None
    assert selection.timings["queue"] == 1.0
    assert selection.timings["speculate"] == 2.0
    assert set(selection.timings) == {"queue", "speculate", "select"}


async def test_the_engine_learns_where_the_question_is(make_request):
    engine = ScriptedEngine([0.5, 0.25, 0.5])
    await SpeculatorService(engine).select(relaid(make_request([7, 8, 9]), question=(1, 3)))
    assert engine.asked.questions == ((1, 3),)


FACT = [11, 12, 13]
TEXT = np.array([*range(100, 110), *FACT, *range(110, 120), 7, *FACT, 8, *range(200, 210)], np.int32)
FULL = DecodeOptions(draft_context="full")
UNITS = np.array([0, 10, 13, 18, 23, 28, 35], np.int32)
"""Units of `TEXT`. Its question is tokens 24 to 26, with the terms of the unit at 10."""


def asking(make_request, **options):
    """A request for `TEXT`, whose end is a short answer of a tool."""
    return make_request(TEXT, [(0, 1), (23, 28)], protect_last=1, keep_rate=0.1, reuse="off", **options)


@pytest.mark.parametrize("granularity", ["text", "chunk"])
async def test_the_words_of_the_question_are_in_the_sum(make_request, granularity):
    """With units of text. Without a known question, there are none."""
    scores = np.full(TEXT.size, 0.25, np.float32)
    scores[13:18] = 0.3
    asked = asking(make_request, granularity=granularity, chunk_size=5)
    asked = replace(relaid(asked, units=UNITS), return_importance=True)
    words = np.array([start <= 11 < end for start, end in pairwise([*UNITS, TEXT.size])], np.float32)
    asked = replace(asked, layout=replace(asked.layout, words=words))
    service = SpeculatorService(ScriptedEngine(scores.tolist()))
    plain = await service.select(asked)
    assert np.array_equal(plain.importance, scores)
    assert 11 not in plain.kept.positions
    summed = await service.select(relaid(asked, question=(24, 27)))
    assert (11 in summed.kept.positions) == (granularity == "text")
    assert np.array_equal(summed.importance, scores) == (granularity == "chunk")


async def test_a_question_before_text_that_may_be_dropped_is_not_the_engines(make_request):
    """The queries of its tokens do not see a tool's result that stands after it."""
    engine = ScriptedEngine([0.5] * TEXT.size)
    asked = relaid(asking(make_request), units=UNITS, question=(24, 27))
    await SpeculatorService(engine).select(asked)
    assert engine.asked.questions == ()
    all_after = relaid(asked, protected=[[23, TEXT.size]])
    await SpeculatorService(engine).select(all_after)
    assert engine.asked.questions == ((24, 27),)


async def test_lines_are_kept_whole_and_wrong_borders_tear_them(make_request):
    """Negative control: borders that are those of other tokens."""
    scores = np.full(TEXT.size, 0.1, np.float32)
    scores[14:17] = 0.9  # the unit of tokens 13 to 17
    for units, torn in ((UNITS, False), (np.r_[0, UNITS[1:] + 2].astype(np.int32), True)):
        engine = ScriptedEngine(scores.tolist())
        kept = (await SpeculatorService(engine).select(relaid(asking(make_request), units=units))).kept.positions
        assert set(range(13, 18)) <= set(kept.tolist()) or torn
        assert (13 in kept) == (not torn)


@pytest.mark.parametrize("indents", [[], [0, 0, 0, 4, 0, 0, 0]])
async def test_the_indents_choose_what_a_selection_and_a_later_turn_keep(make_request, monkeypatch, indents):
    scores, told = np.full(TEXT.size, 0.1, np.float32), []
    scores[13:18] = 0.9  # the unit before the one at 18, which is nested under it
    monkeypatch.setattr(service_module, "extend", lambda prompt, known: told.append(prompt) or extend(prompt, known))
    service = SpeculatorService(ScriptedEngine(scores.tolist()))
    asked = relaid(asking(make_request), units=UNITS, indents=indents)
    options = asked.options.model_copy(update={"keep_rate": 0.25, "reuse": "on"})
    kept = (await service.select(replace(asked, options=options))).kept.positions
    assert (set(range(18, 23)) <= set(kept.tolist())) == bool(indents)
    await service.select(replace(asked, options=options.model_copy(update={"keep_rate": 0.3})))
    assert told[0].layout.indents.tolist() == indents


@pytest.mark.parametrize("links", [[], [(3, 5)]])
async def test_the_links_choose_what_a_selection_and_a_later_turn_keep(make_request, monkeypatch, links):
    scores, told = np.full(TEXT.size, 0.1, np.float32), []
    scores[13:18] = 0.9
    first, last = int(np.searchsorted(UNITS, 13)), UNITS.size - 2
    pairs = np.array([(first, last)] if links else [], np.int32).reshape(-1, 2)
    monkeypatch.setattr(service_module, "extend", lambda prompt, known: told.append(prompt) or extend(prompt, known))
    service = SpeculatorService(ScriptedEngine(scores.tolist()))
    asked = relaid(asking(make_request), units=UNITS, indents=np.zeros(UNITS.size), links=pairs)
    options = asked.options.model_copy(update={"keep_rate": 0.25, "reuse": "on"})
    kept = (await service.select(replace(asked, options=options))).kept.positions
    assert (set(range(UNITS[last], UNITS[last + 1])) <= set(kept.tolist())) == bool(links)
    await service.select(replace(asked, options=options.model_copy(update={"keep_rate": 0.3})))
    assert told[0].layout.links.tolist() == pairs.tolist()


async def test_the_mean_importance_of_each_unit_comes_with_every_selection(make_request):
    service = SpeculatorService(ScriptedEngine([0.5, 0.25, 1.0, 0.0, 0.75]))
    selection = await service.select(make_request(range(5), chunk_size=2))
    assert selection.unit_scores.dtype == np.float32
    assert selection.unit_scores.tolist() == [0.375, 0.5, 0.75]
    by_text = await service.select(relaid(make_request(range(5)), units=[0, 1, 4]))
    assert by_text.unit_scores.tolist() == pytest.approx([0.5, 1.25 / 3, 0.75])


async def test_importance_only_when_asked(make_request):
    service = SpeculatorService(ScriptedEngine([0.5, 0.25]))
    selection = await service.select(make_request([7, 8], return_importance=True))
    assert selection.importance.dtype == np.float32
    assert selection.importance.tolist() == [0.5, 0.25]


async def test_protected_spans_are_kept(make_request):
    service = SpeculatorService(ScriptedEngine([1.0, 0, 0, 0, 0, 0]))
    options = {"granularity": "token", "keep_rate": 0.1, "protect_last": 1}
    plain = await service.select(make_request(range(6), **options))
    protected = await service.select(make_request(range(6), [(2, 4)], **options))
    assert plain.kept.positions.tolist() == [0, 5]
    assert protected.kept.positions.tolist() == [0, 2, 3, 5]


async def test_keeping_everything_is_dense(make_request):
    selection = await SpeculatorService(ScriptedEngine([0.1, 0.2, 0.3])).select(make_request([1, 2, 3], keep_rate=1.0))
    assert selection.kept.is_dense


@pytest.mark.parametrize(
    ("address", "decode", "context"),
    [
        (None, DecodeOptions(), None),
        ("h:1", None, None),
        ("h:1", DecodeOptions(draft_context="full"), "full"),
        ("h:1", DecodeOptions(), "kept"),
    ],
)
async def test_a_session_is_named_if_the_request_asks_for_drafts(make_request, address, decode, context):
    engine = ScriptedEngine([1.0, 0, 0.5])
    request = replace(make_request([7, 8, 9], granularity="token", keep_rate=0.5, protect_last=1), decode=decode)
    service = SpeculatorService(engine, address)
    session = (await service.select(request)).kept.session
    assert (session and (session.address, session.id)) == (context and ("h:1", "r"))
    assert engine.asked.keep_session == (context == "full")


async def test_an_engine_that_does_not_draft_keeps_no_session(make_request):
    engine = ScriptedEngine([1.0, 0, 0.5])
    engine.supports_drafts = False
    selection = await SpeculatorService(engine, "h:1").select(replace(make_request([7, 8, 9]), decode=DecodeOptions()))
    assert selection.kept.session is None
    assert not engine.asked.keep_session


@pytest.mark.parametrize("context", ["full", "kept"])
@pytest.mark.parametrize(("tokens", "drafted"), [(47, True), (48, False), (50, False)])
async def test_a_prompt_that_leaves_no_positions_for_drafts_has_no_session(make_request, tokens, drafted, context):
    """The first draft follows two tokens of the answer. The engine has 50 positions."""
    engine = ScriptedEngine([0.1] * tokens)
    request = replace(make_request(range(tokens), look_ahead=0), decode=DecodeOptions(draft_context=context))
    selection = await SpeculatorService(engine, "h:1").select(request)
    assert (selection.kept.session is not None) == drafted
    assert engine.asked.keep_session == (drafted and context == "full")


async def test_the_cache_salt_reaches_the_engine(make_request):
    engine = ScriptedEngine([0.1, 0.2])
    await SpeculatorService(engine).select(replace(make_request([7, 8]), cache_salt="tenant"))
    assert engine.asked.cache_salt == "tenant"


@pytest.mark.parametrize(
    ("token_ids", "spans", "message"),
    [
        ([], [], "at least one token"),
        ([3, 1024], [], r"Token id 1024 is out of vocabulary: the speculator has 1024 ids"),
        ([-1, 3], [], "Token id -1"),
        (range(43), [], "43 tokens and look_ahead is 8, but the speculator reads at most 50"),
    ],
)
async def test_bad_requests_never_reach_the_engine(make_request, token_ids, spans, message):
    engine = ScriptedEngine([0.1])
    with pytest.raises(InvalidRequestError, match=message):
        await SpeculatorService(engine).select(make_request(token_ids, spans))
    assert engine.calls == 0


async def test_longest_prompt_passes(make_request):
    selection = await SpeculatorService(ScriptedEngine([0.1] * 42)).select(make_request(range(42)))
    assert selection.kept.context_length == 42


@pytest.mark.parametrize("importance", [[0.1, math.nan], [0.1], [0.1, 0.2, 0.3]])
async def test_scores_that_make_no_sense(make_request, importance):
    with pytest.raises(SkimError, match="scores"):
        await SpeculatorService(ScriptedEngine(importance)).select(make_request([1, 2]))


async def test_cancelling_a_selection_aborts_it_in_the_engine(make_request, demo_speculator):
    engine = MockSpeculator(demo_speculator, latency_ms=60_000)
    task = asyncio.create_task(SpeculatorService(engine).select(make_request([1, 2])))
    await asyncio.sleep(0)
    assert engine.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.started, engine.aborted, engine.running) == (1, 1, 0)


async def test_regions_are_selected_by_their_own_rates(make_request):
    engine = ScriptedEngine([0.5, 0.4, 0.3, 0.9, 0.8, 0.7, 0.6, 0.1])
    request = make_request(range(8), granularity="token", keep_rate=0.25, protect_last=1, reuse="off")
    regions = {"rate_spans": [[0, 3]], "rates": np.array([0.6], np.float32)}
    plain = await SpeculatorService(engine).select(request)
    assert plain.kept.positions.tolist() == [3, 4, 7]
    chosen = await SpeculatorService(engine).select(relaid(request, **regions))
    # Two of three in the region, two of five in the rest.
    assert chosen.kept.positions.tolist() == [0, 1, 3, 4, 7]


async def test_a_record_knows_the_rules_of_its_request(make_request):
    """The same prompt with the same rules keeps what it kept; other spans and rates act."""
    prompt, half = np.arange(1000, dtype=np.int32) % 500, np.array([[0, 500]], np.int32)
    engine = ScriptedEngine([0.5] * 500 + [0.25] * 500)
    engine.info = replace(INFO, max_model_len=2000, max_position=2000)
    service = SpeculatorService(engine)
    request = make_request(prompt, keep_rate=0.1)
    first = await service.select(request)
    engine.scores = Scores(np.array([0.25] * 500 + [0.5] * 500, np.float32), [])
    assert (await service.select(request)).kept.positions.tolist() == first.kept.positions.tolist()
    assert (first.kept.positions < 500).sum() == 4 * 32
    for rate in (0.75, 1.0):
        rules = {"rate_spans": half, "rates": np.array([rate], np.float32)}
        again = await service.select(relaid(request, **rules))
        assert (again.kept.positions < 500).sum() >= 500 * rate, rate
    protected = await service.select(relaid(request, protected=half))
    assert set(range(500)) <= set(protected.kept.positions.tolist())


class LateEngine(MockSpeculator):
    """The session is made, and the caller waits on: its cancellation comes between."""

    async def score(self, request):
        scores = await super().score(request)
        await asyncio.Event().wait()
        return scores


async def test_a_selection_that_is_cancelled_after_its_session_was_made_frees_it(make_request, demo_speculator):
    engine = LateEngine(demo_speculator)
    request = replace(make_request(range(10)), decode=FULL)
    task = asyncio.create_task(SpeculatorService(engine, "here:1").select(request))
    while not engine.sessions:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    assert not engine.sessions


async def test_a_selection_with_invalid_scores_keeps_no_session(make_request, demo_speculator):
    engine = MockSpeculator(demo_speculator)
    score = engine.score

    async def short(request):
        scores = await score(request)
        return replace(scores, importance=scores.importance[1:])

    engine.score = short
    request = replace(make_request(range(10)), decode=FULL)
    with pytest.raises(SkimError, match="do not fit"):
        await SpeculatorService(engine, "here:1").select(request)
    await asyncio.sleep(0.01)
    assert not engine.sessions


async def test_a_selection_that_returns_keeps_its_session(make_request, demo_speculator):
    engine = MockSpeculator(demo_speculator)
    await SpeculatorService(engine, "here:1").select(replace(make_request(range(10)), decode=FULL))
    await asyncio.sleep(0.01)
    assert engine.sessions


async def test_no_window_is_longer_than_what_the_speculator_reads(demo_speculator):
    """By default a text of up to 6,144 tokens is one window."""
    sizes = []

    class Noting(MockSpeculator):
        async def score(self, request):
            sizes.append(request.token_ids.size)
            return await super().score(request)

    engine, frame = Noting(demo_speculator, max_model_len=2000, head_profile=True), [np.arange(2, dtype=np.int32)] * 3
    ids = (np.arange(5030) % 800 + 100).astype(np.int32)
    options = SelectionOptions(keep_rate=0.1, scoring="heads", read="windows", granularity="chunk")
    service, windows = SpeculatorService(engine), []
    for first in (5000, 4980):
        sizes.clear()
        layout = layout_of([(first, 5020)], question=(first, 5020), frame=Frame(*frame))
        request = SelectRequest("r", ids, options, layout)
        await service.select(request)
        assert len(sizes) > 2
        assert max(sizes) <= 2000
        windows.append(Reading.of(request, engine.info).request.options.window_tokens)
    assert windows[0] == windows[1], "a longer question leaves the windows of the text as they are"


@pytest.mark.parametrize("is_long", [False, True])
async def test_the_event_loop_goes_on_beside_the_selection_of_a_long_prompt(demo_speculator, monkeypatch, is_long):
    """Of a first turn and of a later one, in windows."""
    inside = dict[str, bool]()
    for module, name in ((service_module, "select"), (service_module, "extend"), (read_module, "windows_of")):
        made = getattr(module, name)

        def noted(*args, name=name, made=made):
            inside[name] = threading.current_thread() is threading.main_thread()
            return made(*args)

        monkeypatch.setattr(module, name, noted)
    service, size = SpeculatorService(MockSpeculator(demo_speculator, head_profile=True)), 2 * INLINE_TOKENS
    for tokens in (size - 100, size) if is_long else (2000, 2100):
        await service.select(in_windows(tokens))
    assert inside == dict.fromkeys(["select", "extend", "windows_of"], not is_long)
