"""The forecast of a turn whose text has scores already: the speculator's part costs nothing."""

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SHORT_TEXT, UNSCORED
from router.decision.forecaster import Forecaster
from router.decision.scored_texts import ScoredTexts
from router.decision.window_reads import WindowReads
from router.options.request import PrefillOptions
from skim_common.models.costs import Read
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.router.simulated_pools import text

TEXT, QUESTION = 20_000, 10
OPTIONS = PrefillOptions(keep_rate=0.2, scoring="heads", read="windows")


def prompt(new=0, question="q"):
    """A text, a question, and `new` tokens of a tool."""
    return np.array([*text("document", TEXT), *text(question, QUESTION), *text("result", new)], np.int32)


def look(forecaster, ids, options=OPTIONS):
    layout = layout_of([(0, 1), (TEXT, TEXT + QUESTION)], question=(TEXT, TEXT + QUESTION))
    windows = WindowReads(around=40, most=4096, again=True)
    return forecaster.look(ids, None, options, layout, windows=windows)


def selected(forecaster, forecast, read=True):
    """A selection of every fifth token."""
    positions = np.arange(0, forecast.ids.size, 5, dtype=np.int32)
    timings = {"queue": 0.0, "speculate": 0.1 * forecast.ids.size} if read else {"queue": 0.0}
    kept = KeptPrompt(forecast.ids[positions], positions, int(forecast.ids.size))
    cached = 0 if read else int(forecast.ids.size)
    forecaster.selected(forecast, Selection(kept, 0.9, timings=timings, cached_tokens=cached), OPTIONS)


@pytest.fixture
def forecaster():
    made = Forecaster(lambda: 0.0)
    for size in (1000, 4000, 16_000):
        for pool in (made.windows, made.target):
            pool.measure(Read.of(size), 0.1 * size, 0.0)
    selected(made, look(made, prompt()))
    return made


def selecting_ms(forecaster, forecast):
    return forecaster.work(forecast, OPTIONS, 0, selects=True).speculator_ms


def test_a_turn_with_the_same_question_is_not_read(forecaster):
    same, other = look(forecaster, prompt(500)), look(forecaster, prompt(500, "another"))
    assert same.scored == TEXT + QUESTION
    assert selecting_ms(forecaster, same) == 0
    assert selecting_ms(forecaster, other) > 100
    assert (same.whole, other.whole) == (UNSCORED, SHORT_TEXT)
    assert same.estimate.speculative < other.estimate.speculative - 100
    assert same.kind != other.kind


def test_a_longer_text_and_a_request_without_reuse_are_read(forecaster):
    assert not look(forecaster, prompt(UNSCORED + 100)).scored
    assert not look(forecaster, prompt(500), OPTIONS.model_copy(update={"reuse": "off"})).scored


def test_a_selection_without_a_read_teaches_no_speed_and_no_cache(forecaster):
    turn = look(forecaster, prompt(1500))
    speeds, known = forecaster.windows.estimate(Read.of(8000)), turn.read.tokens
    selected(forecaster, turn, read=False)
    assert forecaster.windows.estimate(Read.of(8000)) == speeds
    assert look(forecaster, prompt(1500)).read.tokens == known
    assert look(forecaster, prompt(2000)).scored == TEXT + QUESTION, "its new text has no scores"
    assert not look(forecaster, prompt(2500)).scored


def test_another_beginning_is_not_found():
    texts, sizes = ScoredTexts(), look(Forecaster(lambda: 0.0), prompt()).sizes
    texts.add([b"a", b"b"], (b"q",), TEXT)
    assert texts.find([b"a", b"b", b"c"], (b"q",), sizes) == TEXT
    assert texts.find([b"a", b"c"], (b"q",), sizes) == 0
    assert texts.find([], (b"q",), sizes) == 0
