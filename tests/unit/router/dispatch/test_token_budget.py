"""The bound of the tokens that a selection keeps of the client's texts."""

import random

import numpy as np
import pytest

from kv_transfer.layout import TextLayout
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import AUTO
from router.dispatch.select import TokenBudget
from router.options.errors import InvalidOptionError
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

SIZE = 400
OPTIONS = PrefillOptions(granularity="chunk", chunk_size=10, protect_last=20)
LAYOUT = TextLayout(np.array([[0, 15]], np.int32))
TEXT = np.arange(SIZE) >= 5  # so many tokens of the text are always kept: 10 + 20


def selection(positions, scores):
    kept = KeptPrompt(np.array(positions, np.int32), np.array(positions, np.int32), SIZE)
    return Selection(kept, 0.8, unit_scores=np.array(scores, np.float32))


@pytest.mark.parametrize(
    ("given", "most", "wanted"),
    [
        ({"keep_rate": 0.5}, 67, {"keep_rate": 0.1, "min_keep": 0.05}),
        ({"keep_rate": 0.02}, 67, {"keep_rate": 0.02, "min_keep": 0.02}),
        ({"keep_rate": 0.5, "min_keep": 0.3, "max_keep": 0.9}, 67, {"keep_rate": 0.1, "min_keep": 0.1}),
        ({}, 67, {"keep_rate": AUTO, "max_keep": 0.1}),
        ({"coverage": 0.9}, 67, {"keep_rate": AUTO, "coverage": 0.9, "max_keep": 0.1}),
        ({"keep_rate": 0.3, "coverage": 0.9}, 67, {"keep_rate": AUTO, "coverage": 0.9, "max_keep": 0.1}),
        ({"max_keep": 0.06}, 67, {"max_keep": 0.06}),
        ({}, 1000, {"keep_rate": AUTO, "max_keep": None}),
    ],
)
def test_the_options_ask_for_at_most_the_budget(given, most, wanted):
    """37 of the 365 tokens that may be dropped are a tenth."""
    options = PrefillOptions(**{**OPTIONS.model_dump(include={"granularity", "chunk_size", "protect_last"}), **given})
    bound = TokenBudget(most, TEXT).limit(options, LAYOUT)
    assert {name: getattr(bound, name) for name in wanted} == {
        name: pytest.approx(value, rel=0.02) if isinstance(value, float) else value for name, value in wanted.items()
    }
    assert bound.selection  # they cross the wire, so they must be valid


def test_what_is_always_kept_must_fit():
    assert TokenBudget(30, TEXT).limit(OPTIONS, LAYOUT)
    with pytest.raises(InvalidOptionError, match="max_tokens_kept is 29, but 30 tokens are always kept"):
        TokenBudget(29, TEXT).limit(OPTIONS, LAYOUT)


def test_the_units_of_the_lowest_scores_go():
    draw = random.Random(5)
    for _ in range(100):
        scores = [draw.randrange(100) for _ in range(SIZE // 10)]
        units = sorted(draw.sample(range(SIZE // 10), 20))
        fixed = [*range(15), *range(SIZE - 20, SIZE)]
        positions = sorted({*fixed, *(10 * unit + i for unit in units for i in range(10))})
        most = draw.randrange(30, 300)
        before = selection(positions, scores)
        after = TokenBudget(most, TEXT).trim(before, OPTIONS, LAYOUT)
        kept = set(after.kept.positions.tolist())
        assert set(fixed) <= kept <= set(positions)
        assert sum(TEXT[position] for position in kept) <= most
        gone = {position // 10 for position in set(positions) - kept}
        stays = {position // 10 for position in kept - set(fixed)}
        assert not gone & stays, "a unit is kept or dropped as a whole"
        assert max((scores[unit] for unit in gone), default=0) <= min((scores[unit] for unit in stays), default=100)
        room = most - sum(TEXT[position] for position in kept)
        assert not gone or room < 10, "no more units go than must"
        assert after.coverage <= before.coverage
        assert np.array_equal(after.kept.token_ids, after.kept.positions)


def test_a_selection_within_the_budget_stays():
    before = selection(range(200), range(SIZE // 10))
    assert TokenBudget(300, TEXT).trim(before, OPTIONS, LAYOUT) is before


def test_without_scores_nothing_can_be_trimmed():
    before = selection(range(200), range(SIZE // 10))
    unscored = Selection(before.kept, 0.8)
    with pytest.raises(SkimError, match="no scores"):
        TokenBudget(100, TEXT).trim(unscored, OPTIONS, LAYOUT)
