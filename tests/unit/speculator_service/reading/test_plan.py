"""Windows hold every token that may be dropped once, and the same text gives the same windows wherever it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_service.reading.plan import windows_of


def plan(ids, droppable=None, starts=None, size=64):
    ids = np.asarray(ids, np.int32)
    droppable = np.ones(ids.size, bool) if droppable is None else np.asarray(droppable, bool)
    starts = np.arange(0, ids.size, 8) if starts is None else np.asarray(starts)
    return windows_of(ids, droppable, starts, size)


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
    assert held == np.flatnonzero(droppable).tolist()
    longest = max(np.diff(starts, append=tokens))
    assert all(end - start <= max(size, size // 2 + longest) for start, end in windows)
    borders = {*starts.tolist(), *(np.flatnonzero(np.diff(np.r_[0, droppable, 0])).tolist())}
    assert all(start in borders and end in borders | {tokens} for start, end in windows)


def test_a_text_that_fits_is_one_window_and_messages_are_apart():
    droppable = np.ones(100, bool)
    droppable[40:45] = False
    assert plan(range(100), droppable, size=64) == [(0, 40), (45, 100)]


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
