"""Prose that is wrapped at a width: its sentences stay whole, and lines that are no prose stay lines."""

import random
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from router.prompt.text import wrapped
from router.prompt.text.codes import codes_of
from router.prompt.text.units import text_units
from tests.unit.router.prompt.text.test_units import words

ROOT = Path(__file__).parents[5]
PROSE = (
    "The harbour of the old town was deepened twice, first by hand and later with a steam dredger that the council "
    "had bought from a bankrupt company in the north. The second attempt took them more than nine years of work. "
    "Nobody had expected that the current would carry the sand back within a single winter, although two of the "
    "engineers had warned the mayor in a letter which was found much later. When the ferry line moved to the outer "
    "pier, the warehouses lost their tenants one by one, and the last of them became a school for sail makers. In "
    "Riga the same plan had worked, because the river there is slower and the tide is weak. The report of the "
    "commission fills three volumes, but its summary fits on a page, which says to dig less, dig earlier, and ask the "
    "fishermen before anything is built."
)
GERMAN = (
    "Die alte Mühle am Fluss wurde nach dem Brand von den Bewohnern der umliegenden Dörfer wieder aufgebaut, und "
    "zwar aus dem Holz der Scheunen, die ohnehin niemand mehr brauchte. Der Müller zahlte keinen Lohn, versprach "
    "aber jedem Helfer das Mehl eines ganzen Winters. Als die Eisenbahn kam, wurde das Korn billiger als der Weg "
    "dorthin, sodass die Räder nach wenigen Jahren für immer stillstanden und das Gebäude dem Verfall überlassen "
    "blieb."
)


def breaks_in_sentences(text):
    return wrapped.breaks_in_sentences(codes_of(text))


def ragged(text, widest, seed=0):
    """Wrapped as a PDF is: a line takes 0.93 to 1 of the width in characters."""
    draw, lines, line = random.Random(seed), [], ""
    width = widest
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line, width = word, draw.randint(round(0.93 * widest), widest)
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def units(text):
    offsets = words(text)
    starts = text_units(text, offsets)[0]
    found = [text[offsets[a][0] : offsets[b - 1][1]] for a, b in pairwise([*starts.tolist(), len(offsets)])]
    return [unit.strip().replace("\n", " ") for unit in found]


@pytest.mark.parametrize("prose", [PROSE, GERMAN])
@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_the_units_are_those_of_the_text_before_it_was_wrapped(prose, width):
    assert units(textwrap.fill(prose, width)) == units(prose)


@pytest.mark.parametrize("seed", range(5))
def test_lines_of_a_pdf_are_not_quite_as_wide(seed):
    assert units(ragged(PROSE, 90, seed)) == units(PROSE)


def test_paragraphs_and_what_stands_between_them_stay_apart():
    page = textwrap.fill(PROSE, 80)
    listed = "- a list\n- of two items that follow"
    text = f"The harbour\n===========\n\n{page}\n\n{listed}\n\n{page}\nTable 3: costs of dredging\n"
    borders = {0, *(place + 1 for place, sign in enumerate(text) if sign == "\n")}
    inside = set((breaks_in_sentences(text) + 1).tolist())
    second = text.rindex("The harbour of")
    for place in (
        text.index("====="),
        text.index("The harbour of"),
        text.index("- a list"),
        text.index("- of two"),
        second,
    ):
        assert place in borders - inside
    assert len(inside) == 2 * sum(not line.endswith((".", ":")) for line in page.split("\n")[:-1])


def test_line_breaks_of_windows_are_line_breaks():
    page = textwrap.fill(PROSE, 80)
    assert breaks_in_sentences(page.replace("\n", "\r\n")).size == breaks_in_sentences(page).size > 5


def test_a_sentence_that_ends_a_line_ends():
    page = textwrap.fill(PROSE, 80)
    ends = [end for end in range(len(page)) if page[end] == "\n" and page[end - 1] == "."]
    assert not {*ends} & {*breaks_in_sentences(page).tolist()}
    wide = [textwrap.fill(PROSE, width) for width in range(60, 100)]
    assert any(line.endswith(".") for page in wide for line in page.split("\n")[:-1]), "the test sees such a line"


PEOPLE = ("ada", "bob", "cleo", "dora", "emil", "fritz")
NUMBERS = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
PLACE = "the northern harbour of the town in the second year of the war"


def each(form, values=PEOPLE):
    """A line for each of the values."""
    return "\n".join(form.format(value, number=number) for number, value in enumerate(values))


LINES = {
    "code": "result = first_value + second_value - third_value * fourth_value\n"
    * 2
    + "total = compute(result, separator, maximum_length, minimum_length)\n"
    "return total if total is not None else compute(default, separator)\n" * 2,
    "shell": each("install -m 644 build/lib{0}.so.1 /usr/lib/x86/lib{0}.so.1 with the right owner"),
    "log": each("worker {number} has started and waits for the first request of a client"),
    "log of hosts": each("{} sshd[31{number}]: accepted a public key for the user of the night shift"),
    "log with times": each("12:00:0{number} INFO the payment gateway has answered after a long time"),
    "csv": each("{},of the northern harbour,in the second year,by the old ferry line"),
    "table": each("| {} | the northern harbour of the town | the second year of the war |"),
    "columns": each("{:<10}the northern harbour          the second year of the war"),
    "list": each(f"- {{}} goes to {PLACE}"),
    "numbered": each(f"{{number}}. goes to {PLACE}"),
    "lettered": each(f"{{}}) goes to {PLACE}", "abcdef"),
    "fields": each(f"{{}}: {PLACE}", ("owner", "tenant", "captain", "pilot", "guard", "clerk")),
    "json": each('{{"name": "{}", "place": "the northern harbour", "year": "the second"}},'),
    "records of many lengths": "ada went to the northern harbour, and came back late\n"
    "bob has sold his two boats in spring, as the ferry line had asked him to do for so many years\n"
    "cleo keeps the books of the school, and rings its bell\n"
    "dora found a letter, read it, and told nobody except the two engineers whom she trusted at all\n"
    "emil says that the tide is weak, and the river slow\n"
    "fritz counts what the dredger has lifted, writes it into the third volume, and locks the door\n",
    "headlines": "Council backs the new pier, but leaves the old one to its owners\n"
    "Fishermen refuse a second dredger, and ask for their money back\n"
    "Ferry line moves to the outer harbour, tenants fear for their jobs\n"
    "Mayor hides a letter, engineers say, that warned of strong currents\n"
    "Sail makers open a school, and pupils come from all of the coast\n",
    "measurements": "north 12.5 and 14.1, rain 3.2 mm, wind of 22 knots, pressure 1013.1\n"
    "east 11.0 and 13.7, rain 0.0 mm, wind of 17 knots, pressure 1015.9\n"
    "south 10.4 and 12.2, rain 7.5 mm, wind of 31 knots, pressure 1008.4\n"
    "west 13.3 and 15.0, rain 1.1 mm, wind of 25 knots, pressure 1011.7\n",
    "few statements": "customer number one has an old house and lives here\n"
    "the order of a friend was sent in the morning\n"
    "what about the customer and about the rainy weather\n",
    "statements": each("{} ships have left the northern harbour in the second year of it.", NUMBERS).lower(),
    "titles": each("{} Ships That Have Left The Northern Harbour In The Second Year", NUMBERS),
    "verse": "the tide goes out at noon,\nthe ferry waits,\nand nobody comes down\nto the pier\nafter the bell\n" * 3,
    "speech": each(f"{{0}} says that {PLACE} is deep enough for the ferry, and that the council knows it. " * 3),
    "indented": textwrap.indent(textwrap.fill(PROSE, 80), "    "),
    "comment": textwrap.indent(textwrap.fill(PROSE, 80), "# "),
    "quotation": textwrap.indent(textwrap.fill(PROSE, 80), "> "),
    "a line for each sentence": PROSE.replace(". ", ".\n"),
    "script without case": "\n".join(["港は二度深くされた最初は手で後には蒸気で動く船を使って行われた" * 2] * 5),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_no_wrapped_prose_stay_apart(name):
    assert breaks_in_sentences(LINES[name]).size == 0


@pytest.mark.parametrize(
    ("rule", "value", "name"),
    [
        ("INNER_MARKS", 0, "fields"),
        ("INNER_MARKS", 0, "few statements"),
        ("LEAST_BREAKS", 1, "records of many lengths"),
        ("LOWER", 0, "headlines"),
        ("PROSE_LETTERS", 0, "measurements"),
        ("RAGGED", 0.99, "records of many lengths"),
    ],
)
def test_control_without_one_of_the_rules_lines_are_joined(monkeypatch, rule, value, name):
    monkeypatch.setattr(wrapped, rule, value)
    assert breaks_in_sentences(LINES[name]).size > 0


def test_files_of_data_are_not_touched():
    suffixes = (".yaml", ".yml", ".json", ".toml", ".lock", ".in", ".jsonl", ".html")
    folders = ("examples", "requirements", "docker", "benchmarks/results", "demo_models", "evals", "cluster")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in suffixes]
    assert len(files) > 30
    for path in files:
        assert breaks_in_sentences(path.read_text(encoding="utf-8")).size == 0, path.name


def test_empty_and_short_texts_have_none():
    for text in ("", "\n", "a\nb", PROSE, "\n" * 100):
        assert breaks_in_sentences(text).tolist() == []
        assert breaks_in_sentences(text).dtype == np.int64
