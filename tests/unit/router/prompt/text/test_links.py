"""Links between units that share an identifier."""

import re
from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import SelectionOptions
from router.prompt.text.links import MIN_CHARACTERS, MOST_UNITS, links_of
from router.prompt.text.units import with_units
from tests.unit.kv_transfer.layouts import layout_of


def linked(lines, droppable=None, question=None):
    """The links of a text of these lines, each a unit, with a token per character. question: the number of its line."""
    text = "".join(f"{line}\n" for line in lines)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).clip(max=0xFFFF).astype(np.uint16)
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    asked = None if question is None else starts[None, question : question + 2].astype(np.int32)
    may_drop = np.repeat([True] * len(lines) if droppable is None else droppable, [len(line) + 1 for line in lines])
    return links_of(codes, np.arange(len(text)), starts[:-1], may_drop, asked).tolist()


@pytest.mark.parametrize(
    "name", ["C4821", "4821", "T-9917723", "compute_hash", "parseJson", "ERR42", "HTTPError", "_tmp1"]
)
def test_lines_with_one_identifier_are_linked(name):
    assert linked([f"first {name}, then", "something else", f'"{name}" again']) == [[0, 2]]


@pytest.mark.parametrize("name", ["Copenhagen", "words", "C48", "A_1", "the", "\u4eba\u540d\u5730\u540d", "e.g."])
def test_words_and_short_names_link_nothing(name):
    assert linked([f"first {name}, then", f"{name} again"]) == []


def test_an_identifier_is_a_whole_word():
    assert linked(["C4821 here", "C48210 there", "xC4821", "C4821_a"]) == []


def test_one_that_stands_in_many_units_links_nothing():
    lines = [f"line of 2026 number {number}" for number in "abcdefg"]
    assert linked(lines[:MOST_UNITS]) == [list(pair) for pair in combinations(range(MOST_UNITS), 2)]
    assert linked(lines[: MOST_UNITS + 1]) == []


def test_one_that_stands_twice_in_a_unit_counts_once():
    assert linked(["C4821 and C4821", "C4821", "none"]) == [[0, 1]]


def test_units_that_are_always_kept_are_left_out():
    lines = ["C4821 of the question", "C4821", "C4821 too", "C4821 last"]
    assert linked(lines) == []
    assert linked(lines, [False, True, True, True]) == [[1, 2], [1, 3], [2, 3]]


@pytest.mark.parametrize("place", [0, 2])
def test_a_unit_that_the_question_names_is_paired_with_itself(place):
    lines = ["T99 ends, C4821 begins", "no name", "C4821 too"]
    lines.insert(place, "of C4821 or B777?")
    droppable = [number != place for number in range(4)]
    first, second = (number for number, line in enumerate(lines) if "C4821" in line and number != place)
    assert linked(lines, droppable) == [[first, second]]
    assert linked(lines, droppable, place) == [[first, first], [first, second], [second, second]]


def test_the_question_names_nothing_that_stands_in_many_units():
    lines = ["of C4821?", *["C4821 here"] * MOST_UNITS]
    assert [0, 0] not in linked(lines, question=0, droppable=[False, *[True] * MOST_UNITS])
    assert linked([*lines, "C4821 there"], question=0, droppable=[False, *[True] * (MOST_UNITS + 1)]) == []
    assert linked(["of C4821?", "C4821 once"], question=0, droppable=[False, True]) == [[1, 1]]


@given(
    st.lists(
        st.lists(st.sampled_from(["C4821", "a_bc", "Rome", "x1", "aB", "getX", "7777", "-", "."]), max_size=6),
        min_size=1,
    ),
    st.booleans(),
)
def test_links_are_those_of_a_search_line_by_line(words, asks):
    """asks: the first line is the question."""
    lines = [" ".join(line) for line in words]
    units = defaultdict(set)
    named = re.findall(r"\w+", lines[0]) if asks else []
    for number, line in enumerate(lines[asks:], asks):
        for word in re.findall(rf"\w{{{MIN_CHARACTERS},}}", line):
            if re.search(r"[0-9_]", word) or re.search(r"[A-Z]", word[1:]):
                units[word].add(number)
    few = {word: sorted(found) for word, found in units.items() if len(found) <= MOST_UNITS}
    expected = {pair for found in few.values() for pair in combinations(found, 2)}
    expected |= {(unit, unit) for word in named for unit in few.get(word, [])}
    droppable = [not (asks and number == 0) for number in range(len(lines))]
    assert linked(lines, droppable, 0 if asks else None) == [list(pair) for pair in sorted(expected)]


@pytest.mark.parametrize(("is_question", "named"), [(False, []), (True, [[0, 0], [3, 3]])])
def test_the_units_of_a_prompt_have_links_but_not_to_its_question(is_question, named):
    lines = [f"customer number {n} has the id C{n}{n}{n}{n} and lives here" for n in (1, 2)]
    lines += [f"the order of C{n}{n}{n}{n} was sent in the morning" for n in (2, 1)]
    question = "what about the customer C1111 and about the weather ?"
    text = "\n".join([*lines, question])
    offsets = [match.span() for match in re.finditer(r"\S+\s*", text)]
    asked = len(question.split())
    place = (len(offsets) - asked, len(offsets))
    layout = layout_of([place], question=place if is_question else None)
    found = with_units(layout, text, offsets, SelectionOptions(protect_last=1), len(offsets))
    begins = [text[offsets[start][0] :].split()[0] for start in found.units]
    assert begins[:5] == ["customer", "customer", "the", "the", "what"]
    assert found.links.tolist() == sorted([[0, 3], [1, 2], *named])
