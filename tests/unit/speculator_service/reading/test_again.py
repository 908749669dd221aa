"""The second read: which text it holds, what it changes, and that the router expects its work."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import AGAIN_SHARE
from router.decision.sizes import WindowReads
from router.options.request import PrefillOptions
from skim_common.errors import EngineUnavailableError
from speculator_service.engine import Scores
from speculator_service.reading import Reading, best_tokens
from speculator_service.service import scores_of
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.speculator_service.reading.asking import plan_of

TEXT, UNIT = 2000, 20
FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([4, 5], np.int32))
OPTIONS = SelectionOptions(scoring="heads", read="windows", window_tokens=512, protect_last=4, keep_rate=0.1)


def asking(**options) -> SelectRequest:
    """Unit u has the tokens 1000 + u. Words are in the units 10, 50 and 90."""
    ids = np.concatenate([np.repeat(1000 + np.arange(TEXT // UNIT), UNIT), np.arange(40, 52), [7, 8, 9, 6]])
    asked, units = (TEXT, TEXT + 12), [*range(0, TEXT, UNIT), TEXT, TEXT + 12]
    layout = layout_of([asked], question=asked, units=units, gaps=[UNIT * 100] * len(units), frame=FRAME)
    words = np.zeros(len(units), np.float32)
    words[[10, 50, 90]] = 9
    return SelectRequest("r", ids.astype(np.int32), OPTIONS.model_copy(update=options), replace(layout, words=words))


class Reader:
    """An engine whose heads find `first` in windows, and `second` in the last read. Both: unit to mass per token."""

    def __init__(self, first=None, second=None, fails=False):
        self.info = SimpleNamespace(path="model", has_head_profile=True, max_model_len=8192, max_position=8192)
        self.asked, self._first, self._second, self._fails = [], first or {}, second or {}, fails

    async def score(self, request):
        self.asked.append(request)
        again = ".again" in request.request_id
        if again and self._fails:
            raise EngineUnavailableError("gone")
        await asyncio.sleep(0)
        found = self._second if again else self._first
        mass = [found.get(int(token) - 1000, 0.001) for token in request.token_ids]
        return Scores(np.array(mass, np.float32), [], {"queue": 0.0, "speculate": 1.0})

    @property
    def again(self):
        return [request for request in self.asked if ".again" in request.request_id]


async def scored(engine, request) -> Scores:
    return await scores_of(engine, Reading.of(request, engine.info))


async def best_unit(engine, request) -> int:
    scores = await scored(engine, request)
    return int(scores.importance.argmax()) // UNIT


async def test_the_best_of_all_windows_is_read_once_more_before_the_question():
    engine, request = Reader(first={20: 0.5, 70: 0.4}), asking()
    await scored(engine, request)
    [again] = engine.again
    text = again.token_ids[2 : again.questions[0][0] - 1]
    assert text.size == plan_of(request).tokens_again == int(AGAIN_SHARE * TEXT)
    assert (np.diff(text) >= 0).all()  # in the order of the text
    assert {1020, 1070, 1010, 1050, 1090} <= set(text.tolist())
    assert again.token_ids[again.questions[0][0] :].tolist() == [*range(40, 52), 4, 5]


async def test_the_second_read_ranks_anew():
    request = asking()
    first, second = {20: 0.5, 70: 0.4}, {70: 0.5}
    assert await best_unit(Reader(first, second), request) == 70
    # Negative control: without it, the windows decide.
    assert await best_unit(Reader(first, second), asking(read_again="off")) == 20


async def test_it_reads_as_much_as_it_may_of_what_may_be_dropped():
    once = (await scored(engine := Reader({20: 0.5}), asking(read_again="off"))).importance
    chosen = best_tokens(Reading.of(asking(), engine.info), once, plan_of(asking()).tokens_again)
    assert chosen.size == int(AGAIN_SHARE * TEXT)
    assert once[chosen].min() >= np.delete(once[:TEXT], chosen).max()


@pytest.mark.parametrize("options", [{"read_again": "off"}, {"window_tokens": 4096}])
async def test_one_window_and_a_client_that_wants_none_have_no_second_read(options):
    engine = Reader()
    await scored(engine, asking(**options))
    assert not engine.again


async def test_the_second_read_fits_into_the_model():
    engine, request = Reader(), asking()
    engine.info.max_model_len = 400
    await scored(engine, request)
    assert engine.again[0].token_ids.size <= 400


async def test_the_router_expects_the_work_of_both_reads():
    engine, request = Reader(), asking()
    await scored(engine, request)
    options = PrefillOptions(scoring="heads", read="windows", window_tokens=512)
    reads = WindowReads.of(options, plan_of(request), request.size)
    windows = sum(one.token_ids.size for one in engine.asked if one not in engine.again)
    [again] = engine.again
    assert reads.tokens_again() == pytest.approx(again.token_ids.size)
    expected = windows + again.token_ids.size
    assert reads.read(0).tokens == pytest.approx(expected, rel=0.05)
    off = WindowReads.of(options.model_copy(update={"read_again": "off"}), plan_of(request), request.size)
    assert off.read(0).tokens == pytest.approx(windows, rel=0.05)


async def test_a_second_read_that_fails_fails_the_selection():
    with pytest.raises(EngineUnavailableError, match="gone"):
        await scored(Reader(fails=True), asking())


async def test_the_scores_are_the_same_when_the_prompt_comes_again():
    engine = Reader({20: 0.5}, {70: 0.5, 71: 0.2})
    first, second = [(await scored(engine, asking())).importance for _ in range(2)]
    assert np.array_equal(first, second)
