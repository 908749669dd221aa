"""The units of a prompt: where lines and sentences begin, in a tokenizer's tokens."""

import re
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.arrays import no_pairs
from kv_transfer.options import SelectionOptions
from router.prompt.structure.nesting import labels_of
from router.prompt.text.codes import codes_of
from router.prompt.text.cuts import LONGEST
from router.prompt.text.lines import Lines
from router.prompt.text.units import MAX_TOKENS, MIN_TOKENS, WIDE_STOPS, text_units, with_units
from tests.unit.kv_transfer.layouts import layout_of

LONG = "The bell of the old square rang"
CODE = '''import os

def first(number):
    """It adds one to the number."""
    result = number + 1
    return result

def second(text, separator=", "):
    return separator.join(text.split("."))
'''


def words(text):
    """Tokens as most tokenizers make them: white space belongs to the word after it, line breaks stand alone."""
    return [found.span() for found in re.finditer(r"\n+|[ \t]*\w+|[ \t]*[^\w\s]|[ \t]+", text)]


def letters(text):
    return [(i, i + 1) for i in range(len(text))]


def units(text, offsets=None, edges=()):
    """The texts of the units."""
    offsets = words(text) if offsets is None else offsets
    starts = text_units(text, offsets, edges)[0]
    assert starts.dtype == np.int32
    return [text[offsets[a][0] : offsets[b - 1][1]] for a, b in pairwise([*starts.tolist(), len(offsets)])]


def lines(text):
    return re.findall(r".*\n+|.+", text)


@pytest.mark.parametrize(
    "text",
    [
        f"1. {LONG} once.\n2. {LONG} twice.\n10. {LONG} often.\n",
        f"- {LONG}\n- {LONG}\n\n* {LONG}\n",
        "| name | city | since |\n|------|------|-------|\n| Ada | Riga | 1999 |\n| Bob | Oslo | 2001 |\n",
        '{"id": "C1", "name": "Ada"}\n{"id": "C2", "name": "Bob"}\n',
        "12:00:01 INFO node-1 job started\n12:00:02 ERROR node-2 job failed\n",
        "A line of several words with no stop\r\nand a second line of as many words\r\n",
    ],
    ids=["numbered list", "list", "table", "records", "log", "CR LF"],
)
def test_a_line_is_a_unit(text):
    assert units(text) == lines(text)


def test_a_statement_of_code_is_a_unit():
    """The last of a function joins the one before it. A definition is a label, which joins nothing."""
    assert units(CODE) == [
        "import os\n\n",
        "def first(number):\n",
        '    """It adds one to the number."""\n',
        "    result = number + 1\n    return result\n\n",
        'def second(text, separator=", "):\n',
        '    return separator.join(text.split("."))\n',
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG} once.\nYes.\n\n{LONG} twice.\n",
        f"    {LONG} once:\n        yes()\n    {LONG} twice:\n",
        f'{{"name": "{LONG}",\n "since": 1999\n}}\n{{"name": "{LONG}",\n',
    ],
    ids=["the end of a paragraph", "the end of a block", "a closing bracket"],
)
def test_a_short_line_does_not_join_something_new(text):
    assert units(text)[-1] == lines(text)[-1]


def test_the_indent_of_each_unit():
    """That of the line in which it begins, after blank lines, in spaces and tabs."""
    long = " ".join(["word"] * 100)
    text = f"def first(number, other, third):\n    {LONG}. {LONG}.\n\n\t\tx = {long}\n{LONG}.\n"
    starts, indents, *_ = text_units(text, words(text))
    at = [words(text)[start][0] for start in starts.tolist()]
    assert indents.tolist() == [0, 4, 4, 2, 2, 0]
    assert [text[place:].lstrip()[:8] for place in at] == [
        "def firs",
        "The bell",
        "The bell",
        "x = word",
        "word wor",
        "The bell",
    ]
    assert indents.dtype == np.int32


def numbered(text, form, first=1):
    return "".join(form.format(number) + line for number, line in enumerate(text.splitlines(keepends=True), first))


@pytest.mark.parametrize("form", ["{}:", "{:6}\t", "{}|", "{:>6}\u2192"])
def test_numbered_lines_have_the_indents_of_the_text(form):
    """As agents read files. Blank lines have a number and no text."""
    text = "".join(
        f"def part_{n}(first, second):\n    total = first + second + {n}\n\n    return total + {n}\n" for n in "abcd"
    )
    plain = text_units(text, words(text))[1]
    shown = numbered(text, form, 7)
    starts, indents, *_ = text_units(shown, words(shown))
    assert set(plain.tolist()) == set(indents.tolist()) == {0, 4}
    of_line = {}
    for start, indent in zip(starts.tolist(), indents.tolist(), strict=True):
        after = shown[words(shown)[start][0] :]
        of_line[re.search(r"def part_\w|total = .*|return .*", after)[0]] = indent
    assert {name: indent for name, indent in of_line.items() if name.startswith("def")} == {
        f"def part_{n}": 0 for n in "abcd"
    }
    assert all(indent == 4 for name, indent in of_line.items() if not name.startswith("def"))


def test_a_number_alone_is_text():
    """Times of a log and matches of a search are not numbered line by line."""
    text = "12:    the bell rang in the old square\n30:    nobody had heard it for a year\n"
    assert text_units(text, words(text))[1].tolist() == [0, 0]
    text = "12:    the bell rang in the old square\n13:    nobody had heard it for a year\n"
    assert text_units(text, words(text))[1].tolist() == [4, 4]


@pytest.mark.parametrize("text", ["\n\n  \n", "   ", "a", "  a\n  "])
def test_a_text_of_little_else_than_white_space_has_units(text):
    starts, indents, *_ = text_units(text, letters(text))
    assert starts.tolist() == [0]
    assert indents.size == 1


def test_a_sentence_is_a_unit():
    text = f'{LONG} at 3.5 hours. {LONG}! "{LONG}." ({LONG}?) {LONG} (e.g. at a.b.c) and stopped.'
    stops = [
        f"{LONG} at 3.5 hours.",
        f" {LONG}!",
        f' "{LONG}."',
        f" ({LONG}?)",
        f" {LONG} (e.g. at a.b.c) and stopped.",
    ]
    assert units(text)[:4] == stops[:4]
    chinese = [f"一只猫坐在垫子上{stop}" for stop in WIDE_STOPS]
    assert units("".join(chinese), letters("".join(chinese))) == chinese


@pytest.mark.parametrize("end", ["\u3002\u300d", "\uff01\u300f\u300d", "\uff1f\uff01", "\u3002\uff09", "\u3002\u201d"])
def test_marks_that_close_a_wide_sentence_belong_to_it(end):
    spoken = [f"「一只猫坐在红色的大垫子上面{end}", "她说那只猫今天不想出去玩耍。"]
    assert units("".join(spoken * 2), letters("".join(spoken * 2))) == spoken * 2


def test_json_records_on_one_line_are_units():
    records = [f'{{"invoice": {number}, "total": {2 * number}}}' for number in range(10, 13)]
    text = f"[{', '.join(records)}]"
    assert units(text) == [f"[{records[0]},", f" {records[1]},", f" {records[2]}]"]


def test_a_line_of_the_largest_size_is_whole():
    whole = "x" * MAX_TOKENS
    assert text_units(whole, letters(whole))[0].tolist() == [0]


def test_borders_of_messages_hold_also_for_short_units():
    text = f"{LONG} twice.\n{LONG}.\nYes.\n{LONG}.\n"
    offsets = words(text)
    edge = next(i for i, (start, end) in enumerate(offsets) if text[start:end] == "Yes")
    assert units(text) == [f"{LONG} twice.\n", f"{LONG}.\n", f"Yes.\n{LONG}.\n"]
    inside = text_units(text, offsets, [edge, edge + 2, len(offsets)])[0]
    assert {edge, edge + 2} <= set(inside.tolist())
    assert len(offsets) not in inside


def test_the_last_unit_of_a_message_joins_the_one_before_it():
    assert units(f"{LONG} twice.\n{LONG}.\nYes.") == [f"{LONG} twice.\n", f"{LONG}.\nYes."]


@given(
    st.text("ab.!? \n\t(}),\"'12:|。", max_size=400).filter(bool),
    st.lists(st.integers(1, 7), min_size=1, max_size=400),
    st.lists(st.floats(0, 1), max_size=5),
)
def test_units_of_any_tokens_of_any_text(text, sizes, places):
    """They begin at 0, ascend, have every edge, and none is longer than LONGEST. Short are only those at an edge, if
    the text has no labels."""
    ends = np.minimum(np.cumsum(sizes), len(text)).tolist()
    offsets = [(0, 0), *zip([0, *ends], [*ends, len(text)], strict=False)]
    edges = sorted(int(place * len(offsets)) for place in places)
    starts = text_units(text, offsets, edges)[0]
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert starts[-1] < len(offsets)
    assert set(edges) - {len(offsets)} <= set(starts.tolist())
    lengths = np.diff(starts, append=len(offsets))
    assert lengths.max() <= LONGEST
    hard = {0, *edges, len(offsets)}
    with patch(
        "router.prompt.text.units.labels_of",
        lambda *_: labels_of("", codes_of(""), Lines.of(codes_of(""), ""), (), no_pairs()),
    ):
        starts = text_units(text, offsets, edges)[0]
    lengths = np.diff(starts, append=len(offsets))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        assert length >= MIN_TOKENS or {start, start + length} <= hard


def test_with_wrong_offsets_lines_are_torn():
    """Negative control: the places of the tokens matter."""
    text = "".join(f"{number}. {LONG} {'again ' * (number % 7)}for {number} hours\n" for number in range(60))
    offsets = words(text)
    right = text_units(text, offsets)[0]
    for wrong in ([(start + 11, end + 11) for start, end in offsets], [(0, 0), *offsets[:-1]]):
        assert np.isin(text_units(text, wrong)[0], right).mean() < 0.5


def test_where_units_are_not_known_there_are_none():
    text, options = f"{LONG}.\n{LONG} twice.\n", SelectionOptions(protect_last=2)
    offsets = words(text)
    layout = layout_of([(0, 1)], [(3, 9, 0.5)])
    found = with_units(layout, text, offsets, options, len(offsets))
    assert found.units.size == found.indents.size
    assert {1, 3, 9, len(offsets) - 3} <= set(found.units.tolist()), "the last tokens begin with a whole word"
    by_chunk = options.model_copy(update={"granularity": "chunk"})
    for arguments in (
        (None, offsets, options, len(offsets)),
        (text, None, options, len(offsets)),
        (text, offsets, options, len(offsets) + 1),
        (text, offsets, by_chunk, len(offsets)),
    ):
        assert with_units(layout, *arguments) is layout
