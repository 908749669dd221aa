"""A turn that asks what the turn before asked: nothing is read, and its new text is kept whole."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from speculator_service import known_scores, service
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import layout_of

TEXT, UNIT, QUESTION, LAST = 2000, 20, 12, 4
FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([4, 5], np.int32))
OPTIONS = SelectionOptions(scoring="heads", read="windows", window_tokens=512, protect_last=LAST, keep_rate=0.1)


class Reader(MockSpeculator):
    """A mock that notes what it reads."""

    asked: list[str]

    async def score(self, request):
        self.asked.append(request.request_id)
        return await super().score(request)


@pytest.fixture
def engine(demo_speculator):
    made = Reader(demo_speculator, cache_tokens=100_000, head_profile=True)
    made.asked = []
    return made


def turn(new=(), question=40, regions=(), **options) -> SelectRequest:
    """A text and a question, then an answer of 30 tokens and a text for each of the numbers `new`, of so many tokens.
    The last tokens are the template's."""
    parts = [np.arange(TEXT) % 861 + 100, np.arange(question, question + QUESTION)]
    protected, units = [(TEXT, TEXT + QUESTION)], [*range(0, TEXT, UNIT), TEXT]
    for number, size in enumerate(new):
        begin = sum(part.size for part in parts)
        parts += [np.full(LAST, 7), np.full(30, 20 + number), np.full(size, 30 + number), np.full(LAST, 8)]
        protected += [(begin, begin + LAST), (begin + LAST + 30 + size, begin + 2 * LAST + 30 + size)]
        units += [begin, *range(begin + LAST, begin + LAST + 30 + size, UNIT), begin + LAST + 30 + size]
    parts.append(np.full(LAST, 9))
    ids = np.concatenate(parts).astype(np.int32)
    units = sorted({*units, ids.size - LAST})
    layout = layout_of(
        protected, regions, question=(TEXT, TEXT + QUESTION), units=units, gaps=[0] * len(units), frame=FRAME
    )
    layout = replace(layout, words=np.linspace(1, 0, len(units), dtype=np.float32))
    return SelectRequest("r", ids, OPTIONS.model_copy(update=options), layout)


async def after_the_first(engine, request, **first):
    """The selection of a turn behind the first one, and how often the engine read for it."""
    pool = SpeculatorService(engine)
    before = await pool.select(turn(**first))
    assert len(engine.asked) > 1, "the first turn is read"
    engine.asked.clear()
    return before, await pool.select(request), len(engine.asked)


async def test_nothing_is_read_and_the_new_text_is_kept_whole(engine):
    before, found, reads = await after_the_first(engine, turn([100]))
    assert reads == 0
    assert found.cached_tokens == found.kept.context_length
    assert "speculate" not in found.timings
    stood = before.kept.positions[before.kept.positions < TEXT + QUESTION]
    assert found.kept.positions.tolist() == [*stood, *range(TEXT + QUESTION, found.kept.context_length)]
    assert found.reused_tokens == stood.size
    assert 0 < found.coverage <= before.coverage + 1e-6


async def test_the_same_request_again_is_not_read(engine):
    before, found, reads = await after_the_first(engine, turn())
    assert reads == 0
    assert found.kept.positions.tolist() == before.kept.positions.tolist()
    assert found.coverage == pytest.approx(before.coverage)


@pytest.mark.parametrize(
    "request_",
    [
        turn([100], question=60),
        turn([known_scores.UNSCORED + 1]),
        turn([100], keep_rate=0.2),
        turn([100], reuse="off"),
        turn([100], regions=[(TEXT + QUESTION + LAST, TEXT + QUESTION + LAST + 100, 0.5)]),
        replace(turn([100]), cache_salt="other"),
    ],
    ids=["another question", "long text", "other options", "no reuse", "a rate of its own", "another salt"],
)
async def test_other_turns_are_read(engine, request_):
    *_, reads = await after_the_first(engine, request_)
    assert reads > 1


async def test_a_session_over_the_whole_prompt_needs_a_read(engine, monkeypatch):
    monkeypatch.setattr(SpeculatorService, "draft_context", lambda self, request: "full")
    *_, reads = await after_the_first(engine, replace(turn([100]), decode=DecodeOptions()))
    assert reads > 1


async def test_texts_of_several_turns_count_together(engine):
    """They are scored once they are long together, and then dropped like all text."""
    pool, sizes, reads = SpeculatorService(engine), [700, 700, 700], []
    await pool.select(turn())
    for number in range(1, 4):
        engine.asked.clear()
        found = await pool.select(turn(sizes[:number]))
        reads.append(len(engine.asked) > 0)
    assert reads == [False, False, True]
    engine.asked.clear()
    again = await pool.select(turn([*sizes, 100]))
    assert not engine.asked, "from here on it is known again"
    assert again.kept.positions.size <= found.kept.positions.size + 100 + 30 + 3 * LAST


async def test_without_the_known_scores_the_turn_is_read(engine, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(service, "known_scores", lambda request, found: None)
    *_, reads = await after_the_first(engine, turn([100]))
    assert reads > 1
