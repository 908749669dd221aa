"""Windows hold every token that may be dropped once; short texts share them, and the same long text gives the same ones
wherever it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.layout import Frame
from kv_transfer.windows import WHOLE, WindowPlan
from speculator_service.reading import windows_of
from tests.unit.kv_transfer.layouts import layout_of

NOTHING = np.empty(0, np.int32)


def plan(ids, droppable=None, starts=None, size=64):
    ids = np.asarray(ids, np.int32)
    droppable = np.ones(ids.size, bool) if droppable is None else np.asarray(droppable, bool)
    starts = np.arange(0, ids.size, 8) if starts is None else np.asarray(starts)
    parts = WindowPlan.of(droppable, layout_of(question=(0, 0), frame=Frame(NOTHING, NOTHING, NOTHING)), size)
    return windows_of(ids, parts, starts)


@given(
    st.lists(st.booleans(), min_size=1, max_size=300),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.integers(4, 60),
)
def test_each_droppable_token_is_in_one_window(droppable, lengths, size):
    tokens = len(droppable)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    starts = starts[starts < tokens]
    windows = plan(np.arange(tokens) % 7, droppable, starts, size)
    held = [m for start, end in windows for m in range(start, end)]
    assert held == sorted(set(held))
    assert {*np.flatnonzero(droppable).tolist()} <= {*held}
    longest = max(np.diff(starts, append=tokens))
    assert all(end - start <= max(WHOLE * size, size // 2 + longest) for start, end in windows)
    borders = {*starts.tolist(), *(np.flatnonzero(np.diff(np.r_[0, droppable, 0])).tolist())}
    assert all(start in borders and end in borders | {tokens} for start, end in windows)


def without(size, *protected):
    """bool [size], the tokens outside of the spans."""
    droppable = np.ones(size, bool)
    for start, end in protected:
        droppable[start:end] = False
    return droppable


def test_neighbouring_texts_share_a_window_with_what_stands_between_them():
    texts = without(100, (0, 5), (20, 25), (40, 45), (60, 65))
    assert plan(range(100), texts, size=64) == [(5, 60), (65, 100)]
    assert plan(range(100), texts, size=35) == [(5, 40), (45, 60), (65, 100)]


def test_a_text_of_up_to_one_and_a_half_windows_is_one():
    assert plan(range(96), size=64) == [(0, 96)]
    assert len(plan(range(97), size=64)) > 1
    ids, droppable = np.zeros(97, np.int32), np.ones(97, bool)
    for count in (1, 2):
        made = WindowPlan.of(droppable[: 95 + count], layout_of(question=(0, 0), frame=Frame(*[ids[:0]] * 3)), 64)
        assert (made.windows == 1) == (count == 1)
        assert (made.tokens_again == 0) == (count == 1)


def test_a_text_that_fits_is_one_window_and_a_long_one_is_apart_from_its_neighbours():
    assert plan(range(100), without(100, (40, 45)), size=64) == [(0, 40), (45, 100)]
    windows = plan(range(200), without(200, (10, 15), (190, 195)), size=64)
    assert (windows[0], windows[-1]) == ((0, 10), (195, 200))
    assert (windows[1][0], windows[-2][1]) == (15, 190)


def test_turns_that_are_appended_change_the_last_window_alone():
    before, after = (plan(range(size), without(size, *((m, m + 5) for m in range(0, size, 30)))) for size in (600, 900))
    assert after[: len(before) - 1] == before[:-1]


def text_of(windows, ids):
    return {tuple(ids[start:end]) for start, end in windows}


def words(seed, tokens=2000):
    return np.random.default_rng(seed).integers(0, 5000, tokens).astype(np.int32)


@pytest.mark.parametrize("before", [0, 333, 1000])
def test_a_document_gives_the_same_windows_behind_another_text(before):
    """Behind a text of the same message, the first window of the document differs at most."""
    document, other = words(1), words(2, before)
    alone = text_of(plan(document, size=128), document)
    ids = np.concatenate([other, document])
    starts = np.concatenate([np.arange(0, before, 8), before + np.arange(0, document.size, 8)])
    behind = text_of(plan(ids, starts=starts, size=128), ids)
    missing = sum(len(window) for window in alone - behind)
    assert missing <= 4 * 128


def test_cuts_at_fixed_places_would_not():
    """Control: every 128 tokens from the start of the message, no window of the document is found again."""
    document, ids = words(1), np.concatenate([words(2, 333), words(1)])
    cuts = [text_of([(m, m + 128) for m in range(0, text.size, 128)], text) for text in (document, ids)]
    assert not cuts[0] & cuts[1]


def test_an_insertion_changes_few_windows():
    document = words(3)
    changed = np.concatenate([document[:1000], words(4, 16), document[1000:]])
    windows = [text_of(plan(ids, size=128), ids) for ids in (document, changed)]
    assert len(windows[1] - windows[0]) <= 4
    assert len(windows[1]) > 15
