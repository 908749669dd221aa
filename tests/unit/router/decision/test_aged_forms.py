"""Aged forms: which results are old, what is kept, and of which prompts a form is."""

import numpy as np
import pytest

from kv_transfer.prefix_hash import block_hashes
from kv_transfer.spans import spans_of
from router.decision.aged_forms import (
    AgedForm,
    AgedForms,
    block_in_place,
    in_whole_blocks,
    is_worth_it,
    old_results,
)
from router.decision.cache_ledger import BLOCK_TOKENS
from router.options.policies import Age
from router.prompt.tool_results import ToolResult

AGE = Age(turns=2, keep=0.3)
IDS = np.arange(1000, dtype=np.int32)
FORM = AgedForm(AGE, np.array([[130, 180], [200, 250]], np.int32), 260, 0.9)


def hashes(ids=IDS, salt="s"):
    return block_hashes(ids, BLOCK_TOKENS, salt)


def allowed(*spans):
    mask = np.zeros(IDS.size, bool)
    for start, end in spans:
        mask[start:end] = True
    return mask


def test_the_turns_after_a_result_make_it_old():
    results = [ToolResult(10, 20, 3), ToolResult(30, 40, 2), ToolResult(50, 60, 1)]
    assert old_results(results, AGE).tolist() == [[10, 20], [30, 40]]
    assert old_results(results, AGE, later=1).tolist() == [[10, 20], [30, 40], [50, 60]]
    assert old_results(results, AGE, since=20).tolist() == [[30, 40]], "a result is aged once"
    assert old_results(results, Age(turns=4, keep=0.3)).shape == (0, 2)


@pytest.mark.parametrize(
    ("old", "size", "found"),
    [
        ([[100, 1100]], 2200, True),  # 700 tokens are dropped, and 1,400 are read
        ([[100, 1100]], 2201, False),
        ([[100, 1100], [1200, 2200]], 2201, True),
        ([[100, 1100], [5000, 6000]], 6001, False),
        (np.empty((0, 2)), 100, False),
    ],
)
def test_results_wait_for_others_while_more_would_be_read_than_is_gained(old, size, found):
    assert is_worth_it(np.array(old, np.int32), AGE, size) == found


def test_what_is_kept():
    kept = FORM.kept(400)
    assert kept.tolist() == [*range(130), *range(180, 200), *range(250, 400)]
    assert kept.dtype == np.int32


@pytest.mark.parametrize(
    ("ids", "salt", "age", "droppable", "found"),
    [
        (IDS, "s", AGE, [(120, 260)], True),
        (IDS[:400], "s", AGE, [(120, 260)], True),
        (np.concatenate([IDS[:384], IDS[:100]]), "s", AGE, [(120, 260)], True),
        (np.concatenate([IDS[:100], IDS[200:300], IDS[200:]]), "s", AGE, [(120, 260)], False),
        (IDS[:260], "s", AGE, [(120, 260)], True),
        (IDS[:259], "s", AGE, [(120, 259)], False),
        (np.where(np.arange(1000) == 259, 7, IDS), "s", AGE, [(120, 260)], False),
        (np.where(np.arange(1000) == 260, 7, IDS), "s", AGE, [(120, 260)], True),
        (IDS, "t", AGE, [(120, 260)], False),
        (IDS, None, AGE, [(120, 260)], False),
        (IDS, "s", Age(turns=2, keep=0.4), [(120, 260)], False),
        (IDS, "s", Age(turns=3, keep=0.3), [(120, 260)], False),
        (IDS, "s", AGE, [(120, 240)], False),
        (IDS, "s", AGE, [], False),
    ],
)
def test_a_form_is_that_of_the_same_beginning_with_the_same_rules(ids, salt, age, droppable, found):
    forms = AgedForms()
    forms.remember(FORM, IDS, hashes())
    mask = allowed(*droppable)[: len(ids)]
    assert (forms.find(ids, hashes(ids, salt), age, mask) is FORM) == found


def test_the_longest_form_that_a_prompt_allows_counts():
    forms, longer = AgedForms(), AgedForm(AGE, np.array([[130, 180], [200, 250], [500, 600]], np.int32), 640, 0.8)
    forms.remember(FORM, IDS, hashes())
    forms.remember(longer, IDS, hashes())
    assert forms.find(IDS, hashes(), AGE, allowed((100, 640))) is longer
    assert forms.find(IDS, hashes(), AGE, allowed((100, 550))) is FORM, "the newer result is not old here"


def test_whole_blocks_go_in_place_of_what_a_selection_drops():
    """The first and the last token of a result are in blocks with others. A block with a protected token stays."""
    may_drop = allowed((10, 90), (100, 150))[:160]
    may_drop[30] = False
    dropped = may_drop.copy()
    dropped[[20, 50, 51, 52, 70]] = False
    importance = np.ones(160)
    importance[70] = 5.0
    spans = np.array([[10, 90], [100, 150]], np.int32)
    found = in_whole_blocks(dropped, may_drop, importance, spans, 8)
    assert spans_of(found).tolist() == [[16, 24], [32, 88], [104, 144]], "the selection drops 74 tokens and 50"
    dropped[10:50] = False
    importance[70] = 4.0
    found = in_whole_blocks(dropped, may_drop, importance, spans, 8)
    # Now it drops 36 tokens of the first result. Those at 48 to 52 are worth more together than the one at 70.
    assert spans_of(found).tolist() == [[56, 88], [104, 144]]


def test_without_a_whole_block_nothing_goes():
    may_drop = allowed((10, 90))[:160]
    found = in_whole_blocks(may_drop, may_drop, np.ones(160), np.array([[10, 90]], np.int32), 128)
    assert not found.any()
    assert found.size == 160


@pytest.mark.parametrize(
    ("shrinks_by", "dropped", "found"),
    [(16, None, 16), (0, None, 0), (16, [[32, 64]], 16), (16, [[32, 60]], 0), (0, [[32, 64]], 0)],
)
def test_a_prompt_shrinks_in_place_if_all_that_it_has_dropped_is_whole_blocks(shrinks_by, dropped, found):
    before = None if dropped is None else AgedForm(AGE, np.array(dropped, np.int32), 70, 0.9)
    assert block_in_place(shrinks_by, before) == found
    old = np.array([[100, 1100]], np.int32)
    assert not is_worth_it(old, AGE, 5000)
    assert is_worth_it(old, AGE, 5000, found) == bool(found)
    assert not is_worth_it(old[:0], AGE, 5000, 16)
