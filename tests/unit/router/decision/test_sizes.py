"""How many tokens a selection keeps, by the router's count and by the selection itself."""

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from router.decision.sizes import KeptShares, KeptSizes
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of

SPANS = np.array([(0, 3000), (7000, 7100)], np.int32)
SIZE, LAST = 12_000, 32


def selected(options, spans, regions=(), granularity="text"):
    """The number of tokens that a selection keeps of a prompt with units of 10 tokens and any importance."""
    importance = torch.rand(SIZE, generator=torch.Generator().manual_seed(3))
    units = np.arange(0, SIZE, 10) if granularity == "text" else []
    options = SelectionOptions(protect_last=LAST, granularity=granularity, **options)
    return int(select(importance, options, layout_of(spans, regions, units=units))[0].size)


@pytest.mark.parametrize("granularity", ["text", "chunk"])
@pytest.mark.parametrize("spans", [SPANS, SPANS[:0]])
@pytest.mark.parametrize("regions", [[], [(3500, 6500, 0.6)]])
def test_a_rate_is_a_share_of_what_may_be_dropped_on_both_sides(granularity, spans, regions):
    kept = selected({"keep_rate": 0.2}, spans, regions, granularity)
    sizes = KeptSizes.of(SIZE, LAST, layout_of(spans, regions))
    assert sizes.kept(0.2) == pytest.approx(kept, rel=0.02)
    # Negative control: a share of all tokens, and the protected ones once more.
    if spans.size:
        assert abs(3132 + 0.2 * SIZE - kept) > 0.05 * kept


def test_the_bounds_of_auto_are_shares_of_it_too():
    kept = selected({"min_keep": 0.5, "max_keep": 0.5}, SPANS)
    sizes = KeptSizes.of(SIZE, LAST, layout_of(SPANS))
    assert sizes.kept(0.5) == pytest.approx(kept, rel=0.01)
    assert sizes.share_of(kept) == pytest.approx(0.5, rel=0.01)


def test_the_opening_ends_where_something_may_be_dropped():
    assert KeptSizes.of(SIZE, LAST, layout_of(SPANS)).opening == 3000
    assert KeptSizes.of(SIZE, LAST, layout_of(SPANS, [(3000, 4000, 1.0)])).opening == 4000
    assert KeptSizes.of(SIZE, LAST).opening == 0
    assert KeptSizes.of(LAST, LAST).opening == 0


def test_a_short_new_text_is_kept_whole():
    sizes = KeptSizes.of(SIZE, LAST)
    assert sizes.new(0.2, SIZE - 256 - LAST) == 256 + LAST
    assert sizes.new(0.2, SIZE - 500 - LAST) == 100 + LAST


def test_a_selection_of_nothing_tells_no_share():
    assert KeptSizes.of(LAST, LAST).share_of(LAST) is None


def test_prompts_of_many_texts_have_a_share_of_their_own():
    shares, options = KeptShares(), SelectionOptions()
    one = KeptSizes.of(1000, 1, layout_of([(0, 10)]))
    many = KeptSizes.of(1000, 1, layout_of([(start, start + 5) for start in range(0, 1000, 20)]))
    assert (one.texts, many.texts) == (1, 50)
    assert shares.of("windows", options, many) == options.largest_share
    shares.selected("windows", options, one, round(one.kept(0.4)))
    assert shares.of("windows", options, many) == pytest.approx(0.4, abs=0.01)  # no other is known
    shares.selected("windows", options, many, round(many.kept(0.1)))
    assert shares.of("windows", options, many) == pytest.approx(0.1, abs=0.01)
    assert shares.of("windows", options, one) == pytest.approx(0.4, abs=0.01)
