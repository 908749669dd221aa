import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import AUTO_COVERAGE, SelectionOptions
from skim_common.errors import SkimError
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of


def kept(importance, spans=(), **options):
    chosen = SelectionOptions(**{"keep_rate": 0.2, "protect_last": 1, **options})
    return select(torch.as_tensor(importance), chosen, layout_of(spans))[0].tolist()


def naive_select(scores, options, spans, regions=()):
    """The selection rule with sorted() and sets. regions: (start, end, rate)."""
    prompt = len(scores)
    if not any(scores):
        scores = [1.0] * prompt
    size = options.chunk_size if options.granularity == "chunk" else 1
    region_of = [next((i for i, (start, end, _) in enumerate(regions) if start <= m < end), -1) for m in range(prompt)]
    keep = set()
    for region in sorted(set(region_of)):
        mine = [m for m in range(prompt) if region_of[m] == region]
        chunks = {}
        for m in mine:  # tokens of one chunk are of one run: two parts of a divided chunk are two chunks
            chunks.setdefault((m // size, sum(end <= m for _, end, _ in regions)), []).append(m)
        rule = options if region < 0 else SelectionOptions(keep_rate=regions[region][2])
        keep |= naive_choice(scores, list(chunks.values()), rule)
    keep |= set(range(max(0, prompt - options.protect_last), prompt))
    for start, end in spans:
        keep |= set(range(start, end))
    return sorted(keep), math.fsum(scores[m] for m in keep) / math.fsum(scores)


def naive_choice(scores, chunks, options):
    """The tokens of the chunks that the options choose."""
    sums = [math.fsum(scores[m] for m in chunk) for chunk in chunks]
    if options.coverage is None:
        means = [s / len(chunk) for s, chunk in zip(sums, chunks, strict=True)]
        order = sorted(range(len(chunks)), key=lambda c: (-means[c], c))
        chosen = order[: math.ceil(Fraction(repr(options.keep_rate)) * len(chunks))]
    else:
        order = sorted(range(len(chunks)), key=lambda c: (-sums[c], c))
        chosen, mass = [], 0.0
        while not chosen or mass < options.coverage * math.fsum(sums):
            chosen.append(order[len(chosen)])
            mass = math.fsum(sums[c] for c in chosen)
    return {m for c in chosen for m in chunks[c]}


@st.composite
def problems(draw):
    # Sixteenths, many of them equal. Their sums are exact, so ties and coverage do not depend on the order of addition.
    scores = [n / 16 for n in draw(st.lists(st.integers(0, 6), min_size=1, max_size=90))]
    options = SelectionOptions(
        keep_rate=draw(st.sampled_from([1e-6, 0.07, 0.1, 0.2, 0.5, 0.7, 1.0]) | st.floats(0.001, 1)),
        coverage=draw(st.none() | st.sampled_from([1e-6, 0.25, 0.5, 0.75, 1.0])),
        chunk_size=draw(st.sampled_from([1, 2, 8, 32, 200])),
        granularity=draw(st.sampled_from(["chunk", "token"])),
        protect_last=draw(st.sampled_from([1, 5, 4096])),
    )
    ends = st.integers(0, len(scores))
    spans = [tuple(sorted(pair)) for pair in draw(st.lists(st.tuples(ends, ends), max_size=3))]
    edges = sorted(draw(st.sets(ends, max_size=6)))
    rates = st.sampled_from([1e-6, 0.07, 0.3, 0.5, 1.0])
    regions = [(*pair, draw(rates)) for pair in zip(edges[::2], edges[1::2], strict=False)]
    return scores, options, spans, regions


@given(problems())
def test_equals_the_naive_rule(problem):
    scores, options, spans, regions = problem
    positions, coverage = select(torch.tensor(scores), options, layout_of(spans, regions))
    expected, expected_coverage = naive_select(scores, options, spans, regions)
    assert positions.tolist() == expected
    assert coverage == pytest.approx(expected_coverage)


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=200),
    st.floats(0.01, 1),
    st.sampled_from([1, 3, 32]),
    st.booleans(),
)
def test_properties(scores, share, size, by_coverage):
    rule = {"keep_rate": 0.2, "coverage": share} if by_coverage else {"keep_rate": share}
    options = SelectionOptions(**rule, chunk_size=size, protect_last=1)
    positions, coverage = select(torch.tensor(scores), options)
    assert positions.dtype == np.int64
    assert (np.diff(positions) > 0).all()
    assert positions[0] >= 0
    assert positions[-1] == len(scores) - 1
    assert 0 < coverage <= 1 + 1e-12
    if by_coverage:
        assert coverage >= share - 1e-12
    else:
        assert len(positions) >= share * len(scores) - size
    assert np.array_equal(select(torch.tensor(scores), options)[0], positions)


def test_worked_example_head_max():
    for granularity in ("token", "chunk"):
        assert kept([0.401, 0.401, 0.768], keep_rate=0.5, chunk_size=1, granularity=granularity) == [0, 2]


def test_worked_example_three_step_means():
    importance = [0.2321, 0.3021, 0.2894, 0.2552, 0.2060, 0.1163]
    # ceil(1.5) = 2 of 3 chunks, and the last token that is always kept.
    assert kept(importance, keep_rate=0.5, chunk_size=2) == [0, 1, 2, 3, 5]


def test_ties_go_to_the_earlier_chunk():
    assert kept([0.25] * 7, keep_rate=0.5, chunk_size=2) == [0, 1, 2, 3, 6]
    # With float32 sums, the last chunk of 11 tokens would have a higher mean than the chunks of 32.
    last = torch.full((11,), 0.1)
    assert last.sum() / 11 > torch.full((32,), 0.1).sum() / 32
    assert kept([0.1] * 75, keep_rate=0.25) == [*range(32), 74]


def test_short_last_chunk_divides_by_its_own_length():
    # The means are 0.5, 0.3, 0.4. If the last sum were divided by 4, the last chunk would rank last.
    importance = [0.5] * 4 + [0.3] * 4 + [0.4]
    assert kept(importance, keep_rate=0.6, chunk_size=4) == [0, 1, 2, 3, 8]


def test_keep_rate_counts_in_decimal():
    assert math.ceil(0.07 * 100) == 8
    assert kept(range(100), keep_rate=0.07, chunk_size=1) == list(range(93, 100))


def test_keep_rate_edges():
    assert kept(torch.rand(100), keep_rate=1.0) == list(range(100))
    assert kept([0, 9, 0, 0, 0, 0], keep_rate=1e-9, chunk_size=2) == [0, 1, 5]
    assert kept([0.3], keep_rate=0.01) == [0]
    assert kept([0.1, 0.2, 0.3], keep_rate=0.01, chunk_size=32) == [0, 1, 2]


def test_coverage_keeps_the_fewest_chunks_that_reach_it():
    importance = [0.1, 0.4, 0.2, 0.3]
    for coverage, expected in ((0.4, [1, 3]), (0.5, [1, 3]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])):
        assert kept(importance, coverage=coverage, granularity="token") == expected
    # Coverage replaces the keep rate.
    assert kept(importance, coverage=0.4, keep_rate=1.0, granularity="token") == [1, 3]


def test_whole_coverage_drops_only_what_has_no_mass():
    positions, coverage = select(
        torch.tensor([0.0, 0.5, 0, 0.5, 0]),
        SelectionOptions(keep_rate=0.2, coverage=1, granularity="token", protect_last=1),
    )
    assert positions.tolist() == [1, 3, 4]
    assert coverage == 1


def test_coverage_ranks_by_mass_not_by_mean():
    # Sums 0.9, 0.3, 0.7, so the first chunk alone reaches 0.4 of 1.9; the short last chunk has the highest mean.
    importance = [0.3] * 3 + [0.1] * 3 + [0.35] * 2
    positions, coverage = select(
        torch.tensor(importance), SelectionOptions(keep_rate=0.2, coverage=0.4, chunk_size=3, protect_last=1)
    )
    assert positions.tolist() == [0, 1, 2, 7]
    assert coverage == pytest.approx(1.25 / 1.9)


def test_no_importance_at_all_counts_as_equal():
    options = SelectionOptions(keep_rate=0.5, chunk_size=2, protect_last=1)
    positions, coverage = select(torch.zeros(8), options)
    assert positions.tolist() == [0, 1, 2, 3, 7]
    assert coverage == pytest.approx(5 / 8)
    assert kept(torch.zeros(8), coverage=0.5, chunk_size=2) == [0, 1, 2, 3, 7]


def test_protected_spans_and_last_tokens_come_on_top():
    importance = torch.arange(20, 0, -1).float()
    assert kept(importance, keep_rate=0.1, chunk_size=1, protect_last=3) == [0, 1, 17, 18, 19]
    assert kept(importance, [(5, 7), (6, 9), (4, 4)], keep_rate=0.1, chunk_size=1) == [0, 1, 5, 6, 7, 8, 19]
    assert kept(importance, protect_last=4096) == list(range(20))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.1])
def test_scores_that_make_no_sense_are_an_error(bad):
    with pytest.raises(SkimError, match="1 of 3 token scores"):
        kept([0.1, bad, 0.2])


def test_positions_are_original_and_scores_left_alone():
    importance = torch.zeros(4)
    select(importance, SelectionOptions())
    assert not importance.any()


def naive_auto(scores, options, spans):
    """The rule of keep_rate auto with sorted() and sets: only tokens that may be dropped count."""
    prompt = len(scores)
    if not any(scores):
        scores = [1.0] * prompt
    protected = set(range(max(0, prompt - options.protect_last), prompt))
    for start, end in spans:
        protected |= set(range(start, end))
    size = options.chunk_size if options.granularity == "chunk" else 1
    chunks = [sorted(set(range(i, min(i + size, prompt))) - protected) for i in range(0, prompt, size)]
    chunks = [chunk for chunk in chunks if chunk]
    order = sorted(chunks, key=lambda chunk: (-math.fsum(scores[m] for m in chunk), chunk))
    share = AUTO_COVERAGE if options.coverage is None else options.coverage
    most = 0.5 if options.max_keep is None else options.max_keep
    wanted, mass, count = share * math.fsum(scores[m] for c in chunks for m in c), 0.0, 0
    while count < len(order) and (not count or mass < wanted):
        mass += math.fsum(scores[m] for m in order[count])
        count += 1
    bounds = [math.ceil(Fraction(repr(bound)) * len(chunks)) for bound in (options.min_keep, most)]
    count = min(max(count, bounds[0]), bounds[1])
    return sorted(protected | {m for chunk in order[:count] for m in chunk})


@given(problems(), st.sampled_from([0.01, 0.1, 0.25]), st.sampled_from([None, 0.25, 0.3, 1.0]))
def test_auto_equals_the_naive_rule(problem, least, most):
    scores, options, spans, _ = problem
    options = options.model_copy(update={"keep_rate": "auto", "min_keep": least, "max_keep": most})
    positions, _ = select(torch.tensor(scores), options, layout_of(spans))
    # A chunk that is partly protected is kept whole or not at all.
    assert positions.tolist() == naive_auto(scores, options, spans)


def test_auto_keeps_more_where_no_chunk_is_better():
    """Chunks of one token: a peak, a slope, and no difference."""
    peak, slope, flat = [90.0] + [1.0] * 99, [float(100 - i) for i in range(100)], [1.0] * 100
    counts = [len(kept(scores, keep_rate="auto", coverage=0.5, chunk_size=1)) - 1 for scores in (peak, slope, flat)]
    # The last token is protected. min_keep asks for 5 of the other 99, rounded up; the flat curve needs half of them.
    assert counts == [5, 30, 50]


def test_auto_stays_inside_its_bounds():
    flat = [1.0] * 101
    shares = [
        len(kept(flat, keep_rate="auto", chunk_size=1, **bounds)) - 1
        for bounds in ({"max_keep": 0.2}, {"coverage": 0.05}, {"coverage": 0.05, "min_keep": 0.3}, {"coverage": 0.4})
    ]
    assert shares == [20, 5, 30, 40]


def test_protected_importance_is_no_reason_to_keep_little():
    """Negative control for the rule that only droppable tokens count: half of all importance is protected."""
    scores = [99.0] + [1.0] * 100
    with_span = kept(scores, [(0, 1)], keep_rate="auto", coverage=0.5, chunk_size=1, min_keep=0.01)
    assert len(with_span) - 2 == 50
    assert len(kept(scores, keep_rate="auto", coverage=0.5, chunk_size=1, min_keep=0.01)) - 1 == 1


def test_a_region_has_its_own_keep_rate():
    importance = torch.cat([torch.full((320,), 0.9), torch.full((320,), 0.1)])
    options = SelectionOptions(keep_rate=0.1, protect_last=1)
    plain = select(importance, options)[0]
    assert plain.max() == 639
    assert (plain < 320).sum() == 2 * 32
    # Three of ten chunks of the weak half; one of ten, by `options`, of the rest.
    kept, _ = select(importance, options, layout_of((), [(320, 640, 0.3)]))
    assert (kept < 320).sum() == 32
    assert (kept >= 320).sum() == 3 * 32 + 1


def test_a_border_of_a_region_divides_a_chunk():
    importance = [0.1] * 20 + [0.9] * 12 + [0.2] * 33
    options, layout = SelectionOptions(keep_rate=0.1, protect_last=1), layout_of((), [(20, 40, 0.5)])
    kept, _ = select(torch.tensor(importance), options, layout)
    # Of the region's parts [20, 32) and [32, 40), the first; of the rest, [40, 64) has the highest mean.
    assert kept.tolist() == [*range(20, 32), *range(40, 64), 64]


def test_the_whole_prompt_can_be_regions():
    layout = layout_of((), [(0, 4, 1.0), (4, 8, 0.5)])
    kept, _ = select(torch.tensor([0.1] * 8), SelectionOptions(chunk_size=2, protect_last=1), layout)
    assert kept.tolist() == [0, 1, 2, 3, 4, 5, 7]


def test_auto_chooses_among_the_chunks_of_no_region():
    scores = [90.0] + [1.0] * 99
    alone = kept([1.0] * 50, keep_rate="auto", chunk_size=1)
    options, layout = SelectionOptions(keep_rate="auto", chunk_size=1, protect_last=1), layout_of((), [(0, 50, 0.5)])
    positions, _ = select(torch.tensor(scores), options, layout)
    assert (positions < 50).sum() == 25
    assert [m - 50 for m in positions.tolist() if m >= 50] == alone
