"""What an answer cited of an old result, or a call of a tool named, and what cites nothing."""

import json

import numpy as np
import pytest

from router.prompt.citations import MOST_UNITS, RUN, cited_spans
from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import RenderedPrompt
from tests.unit.router.chats import Chat

LINES = [f"Parcel {name} waits in hall 3 for the driver of the {name} tour." for name in "ABCDEFGH"]
LINES += ["The gate of the yard stays open until the last of the vans is back.", "src/app/main.py: def load_all(self):"]
LINES += ["Order O-12345 goes to Lima.", "Order O-67890 goes to Oslo."]
YARD, MODULE, LIMA = 8, 9, 10


def cited_lines(*messages, lines=LINES, share=1.0, change=None):
    """The numbers of the lines of an old result that are cited in the messages after it."""
    chat = Chat().add("user", "Look.").add("tool", "\n".join(lines))
    for role, text in messages:
        chat.add(role, text)
    rendered = chat.rendered()
    if change is not None:
        rendered = RenderedPrompt(rendered.token_ids, rendered.text, rendered.offsets, change(rendered.chat))
    start, end = chat.span(1)
    begins = start + np.cumsum([0, *(len(line) + 1 for line in lines[:-1])])
    units = np.array([0, *begins, end], np.int32)
    found = cited_spans(rendered, units, np.array([[start, end]], np.int32), share)
    assert all(rendered.text[first:last].rstrip("\n") in lines for first, last in found)
    return np.searchsorted(begins, [first for first, _ in found]).tolist()


def call(**arguments):
    return "called", json.dumps({"name": "use", "arguments": arguments})


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("The gate of the yard stays open until the evening.", [YARD]),
        ("It says: `open until the last of the vans`, so no.", [YARD]),
        ("It is in src/app/main.py, I think.", [MODULE]),
        ("`load_all` reads them.", [MODULE]),
        ("The one to Lima is O-12345.", [LIMA]),
        ("O-12345, and load_all, too.", [MODULE, LIMA]),
        ("I see the gate of the yard, and the vans.", []),
        ("The driver of the tour waits in the hall for it.", []),
        ("O-1234 or O-123456 or main.py2 it is not.", []),
        ("", []),
    ],
)
def test_an_answer_cites_lines_by_runs_of_words_and_by_identifiers(said, lines):
    assert cited_lines(("user", "What now?"), ("assistant", said)) == lines


def test_a_call_names_what_it_was_given_by_the_result():
    messages = [call(path="src/app/main.py", old='the gate of the yard\n"stays" open'), ("user", "Go on.")]
    assert cited_lines(*messages) == [YARD, MODULE]
    text = "yes\nThe gate of the yard stays open until\tten"
    assert cited_lines(call(text=text)) == [YARD]


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_only_the_assistant_cites(role):
    """The negative control: the same words of another speaker."""
    assert cited_lines((role, LINES[LIMA])) == []
    assert cited_lines(("assistant", LINES[LIMA])) == [LIMA]


def test_what_was_said_before_the_result_cites_nothing():
    chat = Chat().add("assistant", LINES[LIMA]).add("tool", "\n".join(LINES)).add("user", "Yes?")
    assert cited_spans(chat.rendered(), np.array([0], np.int32), np.array([chat.span(1)], np.int32), 1.0) == []


def test_of_two_results_each_has_what_was_said_after_it():
    chat = Chat().add("tool", LINES[LIMA] + "\n").add("assistant", "O-12345 and O-67890.")
    chat.add("tool", "\n".join(LINES[LIMA:])).add("assistant", "O-67890 it is.")
    rendered, spans = chat.rendered(), [chat.span(0), chat.span(2)]
    second = spans[1][0] + len(LINES[LIMA]) + 1
    found = cited_spans(rendered, np.array([0, second], np.int32), np.array(spans, np.int32), 1.0)
    assert found == [spans[0], (second, spans[1][1])]


@pytest.mark.parametrize("often", [MOST_UNITS, MOST_UNITS + 1])
def test_what_stands_in_many_lines_cites_none(often):
    lines = [f"{name} is done at 2026-01-05 by the same hand as all the others." for name in "ABCDEFG"[:often]]
    said = "All was done at 2026-01-05 by the same hand as all the others."
    assert len(said.split()) > RUN
    found = cited_lines(("assistant", said), lines=[*lines, *LINES])
    assert found == (list(range(often)) if often == MOST_UNITS else [])


def test_the_rarest_and_longest_citations_come_first_and_no_more_than_the_share():
    lines = [*LINES, "Van 8810 has O-12345, too.", "Van 8811 has the pass TR-4477-X."]
    said = ("assistant", "O-12345 is with TR-4477-X, not with 8810.")
    assert cited_lines(said, lines=lines) == [LIMA, 12, 13]
    size = len("\n".join(lines))
    assert cited_lines(said, lines=lines, share=(len(lines[13]) + 1) / size) == [13]
    assert cited_lines(said, lines=lines, share=(len(lines[12]) + len(lines[13]) + 2) / size) == [12, 13]
    assert cited_lines(said, lines=lines, share=20 / size) == []


def test_scripts_without_spaces_cite_by_characters():
    lines = [*LINES, "港口的大门一直开到最后一辆货车回来。"]
    assert cited_lines(("assistant", "大门一直开到晚上。"), lines=lines) == [len(LINES)]
    assert cited_lines(("assistant", "大门开着。"), lines=lines) == []


def test_a_content_without_a_place_could_be_anyones():
    def lose(chat):
        users = [Content(one.message, one.role, one.text, lost=True) for one in chat.contents if one.role == "user"]
        return ChatContents(chat.roles, [*users, *(one for one in chat.contents if one.role != "user")])

    assert cited_lines(("user", LINES[LIMA]), ("assistant", LINES[LIMA]), change=lose) == []
