import itertools
import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import AUTO_COVERAGE, SelectionOptions
from skim_common.errors import SkimError
from speculator_service.scoring.selection import select

NESTED, GROUP = 20, 12
"""`NESTED_TOKENS` and `GROUP_TOKENS` for prompts of 90 tokens."""


def kept(importance, spans=(), **options):
    return select(
        torch.as_tensor(importance), SelectionOptions(**{"keep_rate": 0.2, "protect_last": 1, **options}), spans
    )[0].tolist()


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
    positions, coverage = select(torch.tensor(scores), options, spans, regions)
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
    assert positions.dtype == torch.int64
    assert (positions.diff() > 0).all()
    assert positions[0] >= 0
    assert positions[-1] == len(scores) - 1
    assert 0 < coverage <= 1 + 1e-12
    if by_coverage:
        assert coverage >= share - 1e-12
    else:
        assert len(positions) >= share * len(scores) - size
    assert torch.equal(select(torch.tensor(scores), options)[0], positions)


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
    positions, _ = select(torch.tensor(scores), options, spans)
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
    kept, _ = select(importance, options, (), [(320, 640, 0.3)])
    assert (kept < 320).sum() == 32
    assert (kept >= 320).sum() == 3 * 32 + 1


def test_a_border_of_a_region_divides_a_chunk():
    importance = [0.1] * 20 + [0.9] * 12 + [0.2] * 33
    kept, _ = select(torch.tensor(importance), SelectionOptions(keep_rate=0.1, protect_last=1), (), [(20, 40, 0.5)])
    # Of the region's parts [20, 32) and [32, 40), the first; of the rest, [40, 64) has the highest mean.
    assert kept.tolist() == [*range(20, 32), *range(40, 64), 64]


def test_the_whole_prompt_can_be_regions():
    regions = [(0, 4, 1.0), (4, 8, 0.5)]
    kept, _ = select(torch.tensor([0.1] * 8), SelectionOptions(chunk_size=2, protect_last=1), (), regions)
    assert kept.tolist() == [0, 1, 2, 3, 4, 5, 7]


def test_auto_chooses_among_the_chunks_of_no_region():
    scores = [90.0] + [1.0] * 99
    region = [(0, 50, 0.5)]
    alone = kept([1.0] * 50, keep_rate="auto", chunk_size=1)
    positions, _ = select(
        torch.tensor(scores), SelectionOptions(keep_rate="auto", chunk_size=1, protect_last=1), (), region
    )
    assert (positions < 50).sum() == 25
    assert [m - 50 for m in positions.tolist() if m >= 50] == alone


@st.composite
def texts(draw):
    """Scores, units, spans and regions of a prompt of text. The edges of spans and regions are among the units."""
    scores = [n / 16 for n in draw(st.lists(st.integers(0, 6), min_size=1, max_size=90))]
    places = st.integers(0, len(scores))
    edges = sorted(draw(st.sets(places, max_size=6)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    inner = sorted(draw(st.sets(places, max_size=4)))
    regions = [(*pair, draw(st.sampled_from([0.07, 0.3, 1.0]))) for pair in zip(inner[::2], inner[1::2], strict=False)]
    options = SelectionOptions(
        keep_rate=draw(st.sampled_from(["auto", 1e-6, 0.07, 0.2, 0.5, 1.0])),
        coverage=draw(st.none() | st.sampled_from([1e-6, 0.25, 0.5, 0.75, 1.0])),
        protect_last=draw(st.sampled_from([1, 5, 4096])),
        max_keep=draw(st.sampled_from([None, 0.3])),
    )
    cuts = {0, *edges, *inner, *draw(st.sets(places, max_size=12)), max(0, len(scores) - options.protect_last)}
    units = np.array(sorted(cuts - {len(scores)}), np.int32)
    indents = draw(st.just([]) | st.lists(st.integers(0, 3), min_size=units.size, max_size=units.size))
    unit = st.integers(0, units.size - 1)
    links = draw(st.sets(st.tuples(unit, unit).filter(lambda pair: pair[0] < pair[1]), max_size=4)) if indents else []
    return (
        scores,
        options,
        spans,
        regions,
        units,
        np.array(indents, np.int32),
        np.array([*links], np.int32).reshape(-1, 2),
    )


def naive_ranks(free, starts, means, indents, links):
    """By unit, the highest mean of the unit, of those nested under it, and of those that it is nested under; of a small
    group, at least half the highest mean of all. A mean is at least .9 of those of the units that it is linked with.

    free: the droppable tokens of each unit; messages end at a unit without any. starts: of the units, and the prompt's
    end.
    """
    linked = {unit: [means[a + b - unit] for a, b in links if unit in (a, b)] for unit in means}
    means = {unit: max([mean, *(0.9 * other for other in linked[unit])]) for unit, mean in means.items()}
    ranks = dict(means)
    for outer, indent in enumerate(indents):
        nested = []
        for inner in range(outer + 1, len(indents)):
            if not (free[outer] and free[inner]) or indents[inner] <= indent:
                break
            nested.append(inner)
        group = [outer, *nested]
        best = max(means[unit] for unit in group)
        is_small = starts[group[-1] + 1] - starts[outer] <= GROUP
        passed_on = max(means[outer], best / 2 if is_small else 0.0)
        ranks[outer] = max(ranks[outer], best)
        for inner in nested:
            if starts[inner + 1] - starts[outer + 1] <= NESTED:
                ranks[inner] = max(ranks[inner], passed_on)
    return ranks


def naive_text_select(scores, options, spans, regions, units, indents, links):
    """The rule for units of text with sorted() and sets: as many as are enough in the order of their means, the first
    in the order of their ranks.
    """
    prompt = len(scores)
    if not any(scores):
        scores = [1.0] * prompt
    fixed = set(range(max(0, prompt - options.protect_last), prompt)).union(*(range(*span) for span in spans))
    free = [set(range(a, b)) - fixed for a, b in itertools.pairwise([*units.tolist(), prompt])]
    means = {unit: math.fsum(scores[m] for m in free[unit]) / max(1, len(free[unit])) for unit in range(len(free))}
    ranks = naive_ranks(free, [*units.tolist(), prompt], means, indents.tolist(), links.tolist())
    keep = set(fixed)
    rules = [(set(range(start, end)), rate) for start, end, rate in regions]
    rules.append((set(range(prompt)).difference(*(place for place, _ in rules)), options.fixed_rate))
    for place, rate in rules:
        mine = sorted((unit for unit in means if free[unit] & place), key=lambda unit: (-means[unit], unit))
        tokens, mass = sum(len(free[unit]) for unit in mine), math.fsum(scores[m] for unit in mine for m in free[unit])
        least, most = 0.0, tokens
        if rate is not None:
            least = most = math.ceil(Fraction(repr(rate)) * tokens)
        elif options.keep_rate == "auto":
            least, most = (math.ceil(Fraction(repr(s)) * tokens) for s in (options.min_keep, options.largest_share))
        taken, reached = 0, 0.0
        for number, unit in enumerate(mine):
            covered = rate is None and number and reached >= options.wanted_coverage * mass
            if taken >= most or (taken >= least and (rate is not None or covered)):
                break
            taken, reached = taken + len(free[unit]), reached + math.fsum(scores[m] for m in free[unit])
        kept_tokens = 0
        for unit in sorted(mine, key=lambda unit: (-ranks[unit], unit)):
            if kept_tokens < (taken if rate is None else least):
                keep |= free[unit]
                kept_tokens += len(free[unit])
    return sorted(keep)


@given(texts())
def test_units_of_text_equal_the_naive_rule(problem):
    scores, options, spans, regions, *of_text = problem
    with patch.multiple("speculator_service.scoring.units", NESTED_TOKENS=NESTED, GROUP_TOKENS=GROUP):
        positions, _ = select(torch.tensor(scores), options, spans, regions, *of_text)
    assert positions.tolist() == naive_text_select(scores, options, spans, regions, *of_text)


def test_units_of_text_are_taken_until_their_tokens_are_enough():
    """The last one is taken whole; protected tokens do not count; a line is kept or dropped as a whole."""
    scores = torch.tensor([9.0] * 4 + [1, 3, 2, 0, 3, 3] + [0.5] * 9 + [0])
    units = np.array([0, 4, 8, 10, 19], np.int32)  # means 9 (protected), 1.5, 3, .5
    for rate, expected in ((0.01, [8, 9]), (2 / 15, [8, 9]), (0.14, [4, 5, 6, 7, 8, 9]), (0.5, [*range(4, 19)])):
        chosen = SelectionOptions(keep_rate=rate, protect_last=1)
        assert select(scores, chosen, [(0, 4)], units=units)[0].tolist() == [0, 1, 2, 3, *expected, 19]


@pytest.mark.parametrize("granularity", ["chunk", "token"])
def test_chunks_and_tokens_do_not_see_the_units_of_the_text(granularity):
    scores = torch.from_numpy(np.random.default_rng(0).random(500, np.float32))
    options = SelectionOptions(granularity=granularity)
    with_units = select(scores, options, units=np.arange(0, 500, 7, dtype=np.int32))
    assert torch.equal(with_units[0], select(scores, options)[0])


def test_without_units_the_text_is_cut_in_chunks():
    scores = torch.from_numpy(np.random.default_rng(0).random(500, np.float32))
    by_text, by_chunk = (select(scores, SelectionOptions(granularity=name)) for name in ("text", "chunk"))
    assert torch.equal(by_text[0], by_chunk[0])
    assert by_text[1] == by_chunk[1]


CODE_INDENTS = np.array([0, 4, 8, 4, 0, 4, 4, 0], np.int32)
"""Two functions and a line below them; the third line is inside an `if`. Each line has ten tokens."""


def kept_lines(scores, keep_rate, indents=CODE_INDENTS, group=0, links=()):
    """The lines that are kept of eight with these scores."""
    importance = torch.tensor(scores, dtype=torch.float32).repeat_interleave(10)
    options = SelectionOptions(keep_rate=keep_rate, protect_last=1)
    with patch("speculator_service.scoring.units.GROUP_TOKENS", group):
        pairs = np.array(links, np.int32).reshape(-1, 2)
        positions, _ = select(importance, options, (), (), np.arange(0, 80, 10, dtype=np.int32), indents, pairs)
    return sorted({position // 10 for position in positions.tolist()} - {7})


def test_a_line_brings_what_is_nested_under_it():
    """The signature is what the question names; the body answers it. Line 5 matters more than the body, but line 0 more
    than line 5."""
    scores = [9, 1, 1, 1, 2, 3, 1, 0]
    assert kept_lines(scores, 0.5) == [0, 1, 2, 3]
    assert kept_lines(scores, 0.5, np.zeros(8, np.int32)) == [0, 1, 4, 5], "as if no line were indented"


def test_a_line_brings_those_that_it_is_nested_under():
    scores = [0.5, 1, 9, 1, 2, 3, 1, 0]
    assert kept_lines(scores, 0.37) == [0, 1, 2], "signature and condition, but not the lines beside them"
    assert kept_lines(scores, 0.37, np.zeros(8, np.int32)) == [2, 4, 5]


def test_the_best_of_a_small_group_brings_the_rest_at_half_its_rank():
    """A record of JSON. Of a larger group, a line brings what it is nested under."""
    scores = [0, 0, 9, 0, 1, 4, 1, 0]
    assert kept_lines(scores, 0.5, group=40) == [0, 1, 2, 3]
    assert kept_lines(scores, 0.5, group=39) == [0, 1, 2, 4]
    scores[5] = 5
    assert kept_lines(scores, 0.5, group=40) == [0, 1, 2, 4]


def test_a_line_brings_those_that_share_an_identifier_with_it():
    """The question names the customer; the order has the customer's id. Line 5 matters more than what is linked, if it
    has more than nine tenths."""
    flat, scores = np.zeros(8, np.int32), [9, 1, 0, 1, 2, 3, 1, 0]
    assert kept_lines(scores, 0.25, flat) == [0, 5]
    assert kept_lines(scores, 0.25, flat, links=[(0, 2)]) == [0, 2]
    scores[5] = 8.2
    assert kept_lines(scores, 0.25, flat, links=[(0, 2)]) == [0, 5]
    assert kept_lines([0, 1, 9, 1, 2, 3, 1, 0], 0.25, flat, links=[(0, 2)]) == [0, 2], "the other way round"


def test_what_is_linked_brings_no_further_line():
    flat, scores = np.zeros(8, np.int32), [9, 1, 0, 0, 2, 3, 1, 0]
    assert kept_lines(scores, 0.37, flat, links=[(0, 2), (2, 3)]) == [0, 2, 5]


def test_what_is_linked_brings_what_is_nested_under_it():
    """The question's line calls a function, whose body answers."""
    scores = [0, 0, 0, 0, 1, 9, 2, 0]
    assert kept_lines(scores, 0.75) == [0, 1, 2, 4, 5, 6]
    assert kept_lines(scores, 0.75, links=[(0, 5)]) == [0, 1, 2, 3, 4, 5]


def test_how_much_is_kept_does_not_follow_the_nesting():
    """The share of the importance decides how many lines are kept; the indents decide which."""
    scores = [9, 1, 1, 1, 2, 3, 1, 0]
    importance = torch.tensor(scores, dtype=torch.float32).repeat_interleave(10)
    for coverage in (0.3, 0.5, 0.8):
        options = SelectionOptions(coverage=coverage, protect_last=1, max_keep=1.0)
        flat, nested = (
            select(importance, options, units=np.arange(0, 80, 10, dtype=np.int32), indents=indents)[0]
            for indents in (np.empty(0, np.int32), CODE_INDENTS)
        )
        assert flat.numel() == nested.numel()
