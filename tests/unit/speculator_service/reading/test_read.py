"""A read in windows: what each window's prompt is, where its scores go, and what ends it."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.drafts import DraftRequest, DraftRow
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import AUTO_COVERAGE, HEADS_COVERAGE, LONG_COVERAGE, LONG_FROM, DecodeOptions, SelectionOptions
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from speculator_service.drafting import DraftService
from speculator_service.engine import Scores, TooLongError
from speculator_service.reading import Reading, read_in_windows
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import layout_of, relaid

WINDOWS = SelectionOptions(scoring="heads", read="windows", window_tokens=128, protect_last=4, keep_rate=0.1)
FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([4, 5], np.int32))
TEXT, ASKED = 600, 12
"""Tokens that may be dropped, then the question, then four tokens of the template."""


OF_LAYOUT = ("question", "questions", "protected", "units", "frame")


def asking(**changes) -> SelectRequest:
    ids = np.concatenate([1000 + np.arange(TEXT), np.arange(40, 40 + ASKED), [7, 8, 9, 6]]).astype(np.int32)
    asked = (TEXT, TEXT + ASKED)
    request = SelectRequest(
        "r", ids, WINDOWS, layout_of([asked], question=asked, units=[*range(0, TEXT, 10), *asked], frame=FRAME)
    )
    of_layout = {name: changes.pop(name) for name in OF_LAYOUT if name in changes}
    return replace(relaid(request, **of_layout), **changes)


class Heads:
    """An engine with a head profile. A token's score follows from its id."""

    def __init__(self, fail_at=None, hang=False):
        self.info = SimpleNamespace(path="model", has_head_profile=True, max_model_len=8192, max_position=8192)
        self.asked, self.cancelled, self._fail_at, self._hang = [], 0, fail_at, hang

    async def score(self, request):
        self.asked.append(request)
        queue = float(len(self.asked))
        try:
            if self._fail_at == len(self.asked):
                raise EngineUnavailableError("gone")
            await asyncio.sleep(60 if self._hang or self._fail_at else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        timings = {"queue": queue, "speculate": 1.0}
        return Scores((request.token_ids / 4096).astype(np.float32), [], timings, cached_tokens=10)


async def read(engine, request) -> Scores:
    return await read_in_windows(engine, Reading.of(request, engine.info))


async def test_each_window_is_a_short_prompt_with_the_question_after_it():
    engine, request = Heads(), asking(cache_salt="tenant")
    scores = await read(engine, request)
    asked = request.token_ids[TEXT : TEXT + ASKED]
    for window in engine.asked:
        [(first, end)] = window.questions
        assert window.token_ids[first:end].tolist() == asked.tolist()
        assert window.token_ids[:2].tolist() == [1, 2]
        assert window.token_ids[first - 1] == 3
        assert window.token_ids[end:].tolist() == [4, 5]
        assert first - 3 <= WINDOWS.window_tokens
        assert (window.cache_salt, window.keep_session) == ("tenant", False)
    assert len({window.request_id for window in engine.asked}) == len(engine.asked) >= 5
    text = np.concatenate([window.token_ids[2 : window.questions[0][0] - 1] for window in engine.asked])
    assert text.tolist() == request.token_ids[:TEXT].tolist()
    importance = scores.importance
    assert np.array_equal(importance[:TEXT], (request.token_ids[:TEXT] / 4096).astype(np.float32))
    assert not importance[TEXT:].any()
    assert (scores.cached_tokens, scores.look_ahead_tokens) == (10 * len(engine.asked), [])
    assert scores.timings["queue"] == 1.0


async def test_the_beginning_and_the_end_of_a_long_question_are_read():
    engine, ids = Heads(), np.arange(1000, dtype=np.int32)
    request = asking(token_ids=ids, question=(600, 990), protected=[[600, 990]], units=np.arange(0, 600, 10))
    await read(engine, request)
    [asked] = {tuple(window.token_ids[slice(*window.questions[0])].tolist()) for window in engine.asked}
    assert asked == (*range(600, 616), *range(974, 990))


async def test_several_questions_share_the_room_for_one():
    engine, ids = Heads(), np.arange(1000, dtype=np.int32)
    asked = [(600, 603), (650, 690), (700, 990)]
    request = asking(token_ids=ids, questions=asked, protected=[[600, 990]], units=np.arange(0, 600, 10))
    await read(engine, request)
    texts = {
        tuple(tuple(window.token_ids[slice(*span)].tolist()) for span in window.questions) for window in engine.asked
    }
    [(short, middle, last)] = texts
    assert short == (600, 601, 602)
    assert middle == (*range(650, 657), *range(684, 690))
    assert last == (*range(700, 707), *range(983, 990))
    between = [window.token_ids[window.questions[0][1] : window.questions[1][0]].tolist() for window in engine.asked]
    assert between == [[3]] * len(engine.asked)


class Inflating(Heads):
    """An engine with a tokenizer of its own, in which texts are three times as long. It reads 900 of its tokens."""

    async def score(self, request):
        if 3 * request.token_ids.size > 900:
            raise TooLongError("too long")
        return await super().score(request)


async def test_a_window_that_is_too_long_in_the_speculators_own_tokens_is_read_in_halves():
    long = asking(options=WINDOWS.model_copy(update={"window_tokens": 512}))
    scores = await read(engine := Inflating(), long)
    assert np.array_equal(scores.importance[:TEXT], (long.token_ids[:TEXT] / 4096).astype(np.float32))
    assert all(len(window.questions) == 1 for window in engine.asked)
    assert scores.cached_tokens == 10 * len(engine.asked)
    assert len({window.request_id for window in engine.asked}) == len(engine.asked) > 1


async def test_a_question_that_is_too_long_is_not_halved_for_ever():
    class Full(Heads):
        async def score(self, request):
            self.asked.append(request)
            raise TooLongError("too long")

    with pytest.raises(TooLongError):
        await read(engine := Full(), asking())
    assert len(engine.asked) < 20


async def test_a_window_that_fails_ends_all_others():
    engine = Heads(fail_at=3)
    with pytest.raises(EngineUnavailableError):
        await read(engine, asking())
    await asyncio.sleep(0)
    assert engine.cancelled == len(engine.asked) - 1


async def test_a_client_that_leaves_ends_all_windows():
    engine = Heads(hang=True)
    task = asyncio.create_task(read(engine, asking()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(engine.asked) >= 5
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert engine.cancelled == len(engine.asked)


@pytest.mark.parametrize(
    ("changes", "profile", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"frame": None}, True, False),
        ({"question": None}, True, False),
        ({"options": WINDOWS.model_copy(update={"read": "whole"})}, True, False),
        ({"options": WINDOWS.model_copy(update={"selector": "lexical"})}, True, False),
    ],
)
def test_what_is_read_in_windows(changes, profile, wanted):
    engine = Heads()
    engine.info.has_head_profile = profile
    assert (Reading.of(asking(**changes), engine.info).plan is not None) == wanted


def test_windows_need_the_scores_of_heads():
    with pytest.raises(ValueError, match="read windows needs scoring heads"):
        SelectionOptions(read="windows", scoring="attention")


LONG = 3072


@pytest.mark.parametrize(
    ("options", "windows", "wanted"),
    [
        ({}, True, ("windows", "heads")),
        ({}, False, ("whole", "attention")),
        ({"scoring": "heads"}, True, ("windows", "heads")),
        ({"scoring": "heads"}, False, ("whole", "heads")),
        ({"scoring": "attention"}, True, ("whole", "attention")),
        ({"look_ahead": 4}, True, ("whole", "attention")),
        ({"layers": "all"}, True, ("whole", "attention")),
        ({"granularity": "chunk"}, True, ("whole", "attention")),
        ({"read": "whole"}, True, ("whole", "attention")),
        ({"read": "windows"}, True, ("windows", "heads")),
        ({"read": "windows"}, False, ("windows", "heads")),
    ],
)
def test_auto_reads_prompts_in_windows_where_nothing_is_against_it(options, windows, wanted):
    decided = SelectionOptions(**options).for_prompt(windows=windows)
    assert (decided.read, decided.scoring) == wanted
    assert decided.for_prompt(windows=windows) == decided


@pytest.mark.parametrize(
    ("options", "tokens", "wanted"),
    [
        ({}, LONG_FROM - 1, HEADS_COVERAGE),
        ({}, LONG_FROM, LONG_COVERAGE),
        ({"read": "whole"}, LONG_FROM, AUTO_COVERAGE),
        ({"scoring": "heads", "read": "whole"}, LONG_FROM, LONG_COVERAGE),
        ({"coverage": 0.3}, LONG_FROM, 0.3),
        ({"keep_rate": 0.2}, 2 * LONG, None),
    ],
)
def test_auto_wants_less_of_a_long_prompt_by_heads(options, tokens, wanted):
    decided = SelectionOptions(**options).for_prompt(windows=True)
    assert decided.covering(tokens).coverage == wanted


@pytest.mark.parametrize(("protected", "long"), [(0, True), (1, False)])
async def test_a_prompt_with_much_that_may_be_dropped_keeps_less_by_default(demo_speculator, protected, long):
    """Protected text makes no prompt long. protected: tokens before the text."""
    engine = MockSpeculator(demo_speculator, head_profile=True, max_model_len=4 * LONG)
    size = 2 * LONG + SelectionOptions().protect_last
    ids = np.arange(size, dtype=np.int32) % 500
    asked = (size - ASKED, size)
    spans = np.array([(0, protected), asked][not protected :], np.int32)
    changes = {"question": asked, "protected": spans, "units": np.arange(0, size, 12)}
    kept = {}
    for coverage in (None, LONG_COVERAGE, HEADS_COVERAGE):
        options = SelectionOptions(coverage=coverage, min_keep=0.001, max_keep=1, reuse="off")
        selection = await SpeculatorService(engine).select(asking(token_ids=ids, options=options, **changes))
        kept[coverage] = selection.kept.token_ids.size
    assert kept[LONG_COVERAGE] < kept[HEADS_COVERAGE]
    assert kept[None] == kept[LONG_COVERAGE if long else HEADS_COVERAGE]


@pytest.mark.parametrize(("profile", "windows"), [(True, True), (False, False)])
async def test_by_default_a_head_profile_reads_prompts_in_windows(demo_speculator, profile, windows):
    engine = MockSpeculator(demo_speculator, head_profile=profile)
    size = 2 * SelectionOptions().window_tokens
    ids = np.arange(size, dtype=np.int32) % 500
    asked = (size - ASKED, size)
    changes = {"question": asked, "protected": [asked], "units": np.arange(0, size, 12)}
    await SpeculatorService(engine).select(asking(token_ids=ids, options=SelectionOptions(), **changes))
    assert (engine.started > 1) == windows


@pytest.fixture
def speculator(demo_speculator):
    engine = MockSpeculator(demo_speculator, max_model_len=400, head_profile=True)
    yield engine
    engine.close()


async def test_a_prompt_may_be_longer_than_the_speculators_context(speculator):
    request = asking(token_ids=asking().token_ids % 500)
    selection = await SpeculatorService(speculator, "host:1").select(replace(request, decode=DecodeOptions()))
    assert selection.kept.context_length == request.token_ids.size > 400
    assert selection.kept.session is None  # the drafter could not restore such positions
    speculator.info = replace(speculator.info, has_head_profile=False)
    with pytest.raises(InvalidRequestError, match="the speculator reads at most 400"):
        await SpeculatorService(speculator).select(request)


async def test_drafts_follow_over_the_kept_prompt(demo_speculator):
    engine = MockSpeculator(demo_speculator, head_profile=True)
    drafts = DraftService(engine)
    request = asking(token_ids=asking().token_ids % 500, decode=DecodeOptions())
    await SpeculatorService(engine, "host:1", drafts).select(request)
    assert "r" not in engine.sessions
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.sessions["r"][0] == request.token_ids.size
    row = DraftRow("r", 0, np.array([5], np.int32), 2)
    await drafts.handle(DraftRequest([row]))
    assert drafts.metrics()["lost"] == 0
    await drafts.close()
    engine.close()
