"""Selection from units of text: lines and sentences, how they are nested and linked."""

import itertools
import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import SelectionOptions
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of

NESTED, GROUP = 20, 12
"""`NESTED_TOKENS` and `GROUP_TOKENS` for prompts of 90 tokens."""


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
    links = draw(st.sets(st.tuples(unit, unit).filter(lambda pair: pair[0] <= pair[1]), max_size=4)) if indents else []
    named = draw(st.booleans())
    headings = [draw(st.integers(max(0, unit - 4), unit)) for unit in range(units.size)] if named else []
    return (
        scores,
        options,
        spans,
        regions,
        units,
        np.array(indents, np.int32),
        np.array([*links], np.int32).reshape(-1, 2),
        np.array(headings, np.int32),
    )


def naive_labels(free, ranks, headings):
    """The ranks, where a label ranks as high as the best that it names. What is kept anyway counts as the best."""
    found, best = dict(ranks), dict(ranks)
    for unit in reversed(range(len(headings))):
        if (heading := headings[unit]) != unit:
            value = best[unit] if free[unit] else max(ranks.values())
            best[heading] = found[heading] = max(best[heading], value)
    return found


def naive_ranks(free, starts, means, indents, links):
    """By unit, the highest mean of the unit, of those nested under it, and of those that it is nested under; of a small
    group, at least half the highest mean of all. The mean of a unit that is linked with itself counts as the highest; a
    mean is at least .9 of those of the units that it is linked with.

    free: the droppable tokens of each unit; messages end at a unit without any. starts: of the units, and the prompt's
    end.
    """
    means = {
        unit: max(means.values()) if (unit, unit) in set(map(tuple, links)) else mean for unit, mean in means.items()
    }
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


def naive_text_select(scores, options, spans, regions, units, indents, links, headings):
    """The rule for units of text with sorted() and sets: as many as are enough in the order of their means, the first
    in the order of their ranks.
    """
    prompt = len(scores)
    if not any(scores):
        scores = [1.0] * prompt
    fixed = set(range(max(0, prompt - options.protect_last), prompt)).union(*(range(*span) for span in spans))
    free = [set(range(a, b)) - fixed for a, b in itertools.pairwise([*units.tolist(), prompt])]
    means = {unit: math.fsum(scores[m] for m in free[unit]) / max(1, len(free[unit])) for unit in range(len(free))}
    ranks = (
        means
        if not indents.size
        else naive_ranks(free, [*units.tolist(), prompt], means, indents.tolist(), links.tolist())
    )
    ranks = naive_labels(free, ranks, headings.tolist())
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
    for unit in reversed(range(headings.size)):  # a label is after what it names here
        if headings[unit] != unit and free[unit] <= keep:
            keep |= free[int(headings[unit])]
    return sorted(keep)


@given(texts())
def test_units_of_text_equal_the_naive_rule(problem):
    scores, options, spans, regions, *of_text = problem
    with patch.multiple("speculator_service.selection.units", NESTED_TOKENS=NESTED, GROUP_TOKENS=GROUP):
        units, indents, links, headings = of_text
        layout = layout_of(spans, regions, units=units, indents=indents, links=links, headings=headings)
        positions, _ = select(torch.tensor(scores), options, layout)
    assert positions.tolist() == naive_text_select(scores, options, spans, regions, *of_text)


@given(texts())
def test_every_kept_unit_has_its_labels(problem):
    """By whatever rule. Without regions, they count in the rate: it is passed by the last unit at most, and by the
    labels of what is kept anyway."""
    scores, options, spans, regions, units, indents, links, headings = problem
    layout = layout_of(spans, regions, units=units, indents=indents, links=links, headings=headings)
    kept = set(select(torch.tensor(scores), options, layout)[0].tolist())
    whole = [set(range(a, b)) <= kept for a, b in itertools.pairwise([*units.tolist(), len(scores)])]
    assert all(whole[heading] for unit, heading in enumerate(headings.tolist()) if whole[unit])
    if options.fixed_rate is not None and not regions and len(headings):
        fixed = layout.fixed(len(scores), options.protect_last)
        free = np.add.reduceat((~fixed).astype(int), units)
        anyway = layout.labels_of(free == 0)
        budget = math.ceil(Fraction(repr(options.fixed_rate)) * int(free.sum()))
        assert len(kept) - fixed.sum() < budget + free.max() + free[anyway].sum() + 1


def test_units_of_text_are_taken_until_their_tokens_are_enough():
    """The last one is taken whole; protected tokens do not count; a line is kept or dropped as a whole."""
    scores = torch.tensor([9.0] * 4 + [1, 3, 2, 0, 3, 3] + [0.5] * 9 + [0])
    units = np.array([0, 4, 8, 10, 19], np.int32)  # means 9 (protected), 1.5, 3, .5
    for rate, expected in ((0.01, [8, 9]), (2 / 15, [8, 9]), (0.14, [4, 5, 6, 7, 8, 9]), (0.5, [*range(4, 19)])):
        chosen = SelectionOptions(keep_rate=rate, protect_last=1)
        assert select(scores, chosen, layout_of([(0, 4)], units=units))[0].tolist() == [0, 1, 2, 3, *expected, 19]


@pytest.mark.parametrize("granularity", ["chunk", "token"])
def test_chunks_and_tokens_do_not_see_the_units_of_the_text(granularity):
    scores = torch.from_numpy(np.random.default_rng(0).random(500, np.float32))
    options = SelectionOptions(granularity=granularity)
    with_units = select(scores, options, layout_of(units=np.arange(0, 500, 7)))
    assert np.array_equal(with_units[0], select(scores, options)[0])


def test_without_units_the_text_is_cut_in_chunks():
    scores = torch.from_numpy(np.random.default_rng(0).random(500, np.float32))
    by_text, by_chunk = (select(scores, SelectionOptions(granularity=name)) for name in ("text", "chunk"))
    assert np.array_equal(by_text[0], by_chunk[0])
    assert by_text[1] == by_chunk[1]


CODE_INDENTS = np.array([0, 4, 8, 4, 0, 4, 4, 0], np.int32)
"""Two functions and a line below them; the third line is inside an `if`. Each line has ten tokens."""


def kept_lines(scores, keep_rate, indents=CODE_INDENTS, group=0, links=()):
    """The lines that are kept of eight with these scores."""
    importance = torch.tensor(scores, dtype=torch.float32).repeat_interleave(10)
    options = SelectionOptions(keep_rate=keep_rate, protect_last=1)
    with patch("speculator_service.selection.units.GROUP_TOKENS", group):
        layout = layout_of(units=np.arange(0, 80, 10), indents=indents, links=links)
        positions, _ = select(importance, options, layout)
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
    has more than four tenths."""
    flat, scores = np.zeros(8, np.int32), [9, 1, 0, 1, 2, 3, 1, 0]
    assert kept_lines(scores, 0.25, flat) == [0, 5]
    assert kept_lines(scores, 0.25, flat, links=[(0, 2)]) == [0, 2]
    scores[5] = 3.7
    assert kept_lines(scores, 0.25, flat, links=[(0, 2)]) == [0, 5]
    assert kept_lines([0, 1, 9, 1, 2, 3, 1, 0], 0.25, flat, links=[(0, 2)]) == [0, 2], "the other way round"


def test_a_line_that_the_question_names_comes_first_and_brings_what_is_linked_with_it():
    """It is linked with itself. The best of the others follows, and then the one that shares an identifier with it."""
    flat, scores = np.zeros(8, np.int32), [9, 1, 0, 1, 2, 3, 1, 0]
    assert kept_lines(scores, 0.25, flat) == [0, 5]
    assert kept_lines(scores, 0.25, flat, links=[(2, 2)]) == [0, 2]
    assert kept_lines(scores, 0.37, flat, links=[(2, 2)]) == [0, 2, 5]
    assert kept_lines(scores, 0.37, flat, links=[(2, 2), (2, 6)]) == [0, 2, 6]


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
            select(importance, options, layout_of(units=np.arange(0, 80, 10), indents=indents))[0]
            for indents in (np.empty(0, np.int32), CODE_INDENTS)
        )
        assert flat.size == nested.size
