"""Which label names each unit of a text, and which label names that one."""

import json
import time
from itertools import pairwise

import pytest

from kv_transfer.arrays import no_pairs
from router.prompt.structure.nesting import MOST_LABELS, labels_of
from router.prompt.text.codes import codes_of
from router.prompt.text.lines import Lines
from router.prompt.text.units import MOST_LABEL_TOKENS, text_units
from tests.unit.router.prompt.structure.test_forms import words

LONG = "The bell of the old square rang once more at noon"


def chains(text, **given):
    """Of each unit its text, and the texts of its labels from the nearest on, without white space around."""
    offsets = words(text)
    found = text_units(text, offsets, **given)
    starts = [*found.starts.tolist(), len(offsets)]
    units = [text[offsets[a][0] : offsets[b - 1][1]].strip() for a, b in pairwise(starts)]
    named = []
    for number, unit in enumerate(units):
        chain, at = [], number
        while (above := int(found.headings[at])) != at:
            chain.append(units[above])
            at = above
        named.append((unit, chain))
    return named


def chain_of(text, part, **given):
    """The chain of the unit that has `part`."""
    [chain] = [chain for unit, chain in chains(text, **given) if part in unit]
    return chain


CASES = {
    "sections": (
        f"# One\n\n{LONG}.\n\n## Two\n\n{LONG} twice.\n\n# Three\n\n{LONG} thrice.\n",
        "twice",
        ["## Two", "# One"],
    ),
    "the next section": (f"# One\n\n## Two\n\n{LONG} twice.\n\n# Three\n\n{LONG} thrice.\n", "thrice", ["# Three"]),
    "CSV": ("id,weight,colour\n" + "".join(f"{n},{7 * n},red\n" for n in range(60)), "\n40,280,", ["id,weight,colour"]),
    "TSV": ("id\tweight\n" + "".join(f"house {n}\t{7 * n} kilograms\n" for n in range(60)), "house 40", ["id\tweight"]),
    "Markdown table": (
        "| id | weight |\n|---|---|\n" + "".join(f"| house {n} | {7 * n} |\n" for n in range(60)),
        "house 40",
        ["| id | weight |"],
    ),
    "columns": (
        "NAME        READY   AGE\n" + "".join(f"pod-{n}-abc   1/1     {n}d\n" for n in range(10, 70)),
        "pod-40-",
        ["NAME        READY   AGE"],
    ),
    "HTML table": (
        "<table>\n<tr><th>id</th><th>weight</th></tr>\n"
        + "".join(f"<tr><td>house {n}</td><td>{7 * n}</td></tr>\n" for n in range(60))
        + "</table>\n",
        "house 40",
        ["<tr><th>id</th><th>weight</th></tr>"],
    ),
    "JSON in one line": (
        json.dumps({"harbour": {name: {f"key {n}": LONG for n in range(4)} for name in ("compass", "lamp")}}),
        None,
        ['"lamp": {', '"harbour": {'],
    ),
    "JSON over lines": (
        json.dumps({"harbour": {name: {f"key {n}": LONG for n in range(4)} for name in ("compass", "lamp")}}, indent=1),
        None,
        ['"lamp": {', '"harbour": {'],
    ),
    "code": (
        f"class House:\n    def first(self):\n        return 1\n\n    def second(self):\n        return '{LONG}'\n",
        LONG,
        ["def second(self):", "class House:"],
    ),
    "config": (f"server:\n  tls:\n    name: {LONG}\nclient:\n  other: {LONG} twice\n", "name:", ["tls:", "server:"]),
    "the next part of a config": (
        f"server:\n  tls:\n    name: {LONG}\nclient:\n  other: {LONG} twice\n",
        "twice",
        ["client:"],
    ),
    "diff": (
        "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n"
        f"-a = '{LONG}'\n+b = '{LONG} twice'\ndiff --git a/y.py b/y.py\n--- a/y.py\n+++ b/y.py\n@@ -9 +9 @@\n+c = 1\n",
        "twice",
        ["@@ -1,3 +1,3 @@", "+++ b/x.py"],
    ),
    "a trace under a line of a log": (
        f"2024-05-01 12:00:01 ERROR auth: it failed\n    at {LONG}\n2024-05-01 12:00:02 INFO store: {LONG}\n",
        "at The",
        ["2024-05-01 12:00:01 ERROR auth: it failed"],
    ),
    "fields of a record": (
        "".join(f"Name: house {n}\nCity: {LONG} {n}\nWeight: {LONG}, {n} kilograms\n\n" for n in range(4)),
        "2 kilograms",
        [f"City: {LONG} 2", "Name: house 2"],
    ),
    "an answer": (
        "".join(
            f"Q: What is the weight of house {n}?\nA: {LONG}. {LONG}. It has {n} tons. {LONG}.\n\n" for n in range(4)
        ),
        "2 tons",
        ["A:", "Q: What is the weight of house 2?"],
    ),
    "after a fence": (
        f"## House\n\n~~~\n# run it\n./bell {LONG}\n```\n## on\n~~~\n{LONG} twice.\n",
        "twice",
        ["## House"],
    ),
    "in a fence of an item": (
        f"## House\n\n1. Ring it:\n   ````sh\n# run it\n\n./bell {LONG} twice\n```\n# on\n````\n\n# Next\n",
        "twice",
        ["1. Ring it:", "## House"],
    ),
    "after a fence of an item": (
        f"## House\n\n1. Ring it:\n   ```sh\n# run it\n\n./bell {LONG}\n   ```\n{LONG} twice.\n",
        "twice",
        ["## House"],
    ),
    "after a fence that is cut off": (
        f"## House\n\n```\n# run it\n\n./bell {LONG}\n\n```sh\n# ring it\n\n{LONG}\n```\n{LONG} twice.\n",
        "twice",
        ["## House"],
    ),
    "the passage after a fence that is cut off": (
        f"Passage 1:\n\n```\n# run it\n\n./bell {LONG}\n\nPassage 2:\n\n{LONG} twice.\n",
        "twice",
        ["Passage 2:", "Passage 1:"],
    ),
    "after a comment": (
        f"## House\n\n# License\n# of the bell\n\n# run it\n./bell {LONG}\n\n{LONG} twice.\n",
        "twice",
        ["## House"],
    ),
    "a mail": (
        "".join(f"From: {who}\nSubject: Bell\n\n{LONG} {who}.\n\n" for who in ("Ann", "Bob", "Cid")),
        "noon Bob",
        ["From: Bob"],
    ),
    "a signature": (
        "".join(f"{LONG} {who}.\n{LONG}.\n-- {who} Smith, Riga\n\n" for who in ("Ann", "Bob", "Cid", "Dan")),
        "noon Bob",
        ["-- Bob Smith, Riga"],
    ),
    "a name behind a record's other fields": (
        "".join(f"BEGIN\nKIND: bell\nSAID: {LONG}. {LONG}. {LONG} {n}.\nNAME: house {n}\nEND\n\n" for n in range(9)),
        "noon 4",
        ["NAME: house 4"],
    ),
    "after a closed tag": (
        f'<doc id="1">\n{LONG}. {LONG}.\n</doc>\n{LONG} twice. {LONG}.\n',
        "twice",
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_chain_of_a_unit(case):
    text, part, expected = CASES[case]
    if part is None:
        assert [chain for unit, chain in chains(text) if "key 3" in unit][-1] == expected
        return
    assert chain_of(text, part.strip()) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG}. It rang. {LONG}.\n" * 4,
        f"# a comment\nx = 1\n# {LONG}\nimport os\n",
        f"He said: {LONG}.\nShe said so, and: {LONG}.\n",
        f"- [ ] {LONG}\n- [x] {LONG}\n",
        "roses, which are red\nviolets, which are all blue\nsugar, which is very sweet\n",
        f"[link](http://example.org) {LONG}.\n{LONG}.\n",
        "".join(f'{{"invoice": "INV-{n}", "customer": "{LONG}", "total": "{7 * n}.50"}}\n' for n in range(12)),
    ],
)
def test_other_text_has_no_labels(text):
    assert not any(chain for _, chain in chains(text))


def test_a_label_is_never_joined_with_the_text_before():
    for unit, _ in chains(f"## A\nYes.\n## B\nNo.\n\n{LONG}.\n"):
        assert "##" not in unit[1:].lstrip("#")


def test_a_long_label_is_cut():
    names = ",".join(f"name{n}" for n in range(60))
    found = text_units(text := names + "\n" + ("x" + ",1" * 59 + "\n") * 4, offsets := words(text))
    assert 0 < found.starts[1] <= MOST_LABEL_TOKENS
    assert set(found.headings.tolist()) == {0}
    assert len(offsets) > 4 * MOST_LABEL_TOKENS


def test_a_deep_chain_has_the_outer_labels_and_the_nearest():
    deep = "".join(f"{' ' * n}def f{n}(a, b, c, d, e):\n" for n in range(20)) + " " * 20 + LONG
    chain = chain_of(deep, LONG)
    assert chain == [f"def f{n}(a, b, c, d, e):" for n in (19, *range(MOST_LABELS - 1, -1, -1))]


def test_a_label_names_nothing_in_another_message_and_no_question():
    text = f"## A\n\n{LONG}.\n\n{LONG} twice.\n\nWhat is it that rang in the old square?\n"
    assert chain_of(text, "twice") == ["## A"]
    assert chain_of(text, "twice", messages=[text.index(f"{LONG} twice")]) == []
    first = next(number for number, (start, _) in enumerate(words(text)) if start >= text.index("What"))
    assert chain_of(text, "What", unnamed=[(first, len(words(text)))], protected=[(first, len(words(text)))]) == []


def test_a_fence_that_is_cut_off_ends_with_its_message():
    text = f"```\n# run it\n\n./bell {LONG}\n\n## A\n\n```\n# ring it\n\n{LONG}\n```\n{LONG} twice.\n"
    assert chain_of(text, "twice", messages=[text.index("## A")]) == ["## A"]


def test_a_label_whose_beginning_is_protected_still_names():
    """The first token of a prompt is always kept."""
    text = f"## A house\n\n{LONG}.\n"
    assert chain_of(text, LONG, protected=[(0, 1)], unnamed=[(0, 1)]) == ["# A house"]


@pytest.mark.parametrize(
    "part", ["[\n", '{"a":1,"b":', "<a b></a>", "```\n", "a: x\nb\n", "a|b\n1|2\n3|4\n\n", "# a\n\n", "> "]
)
def test_the_time_grows_with_the_text(part):
    took = []
    for size in (50_000, 200_000):
        codes = codes_of(text := part * (size // len(part)))
        began = time.process_time()
        labels_of(text, codes, Lines.of(codes, text), (), no_pairs())
        took.append(time.process_time() - began)
    assert took[1] < 10 * max(took[0], 0.02)


def test_the_label_of_a_record_begins_at_its_opening_bracket() -> None:
    """Else the bracket joins the record before it, and the record's lines are no block."""
    records = [{"invoice": f"INV-{n}", "order": f"PO-{n}", "total": f"{n}.50 euros in all"} for n in range(40)]
    units = [unit for unit, _ in chains(json.dumps(records, indent=2))]
    [of_record] = [unit for unit in units if '"INV-20"' in unit]
    assert of_record.startswith("{")
