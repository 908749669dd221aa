"""The kept lines of a text: their numbers, the marks of what is left out, and the places in the client's own text."""

import json
import random

import numpy as np
import pytest

from kv_transfer.layout import TextLayout
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from router.explain import selected_text
from router.explain.selected_text import SelectedPrompt, kept_lines, placed_texts
from router.prompt.protected_spans import tokens_touched_by_each

TEXT = "one\ntwo\n\nfour\n  five. And more. End.\nsix\n"


def spans(*pieces):
    return [(TEXT.index(piece), TEXT.index(piece) + len(piece)) for piece in pieces]


@pytest.mark.parametrize(
    ("kept", "shown", "lines"),
    [
        (["one\n", "six\n"], "1: one\n... 4 lines left out ...\n6: six", [(1, 1), (6, 6)]),
        (["two\n\nfour\n"], "... 1 line left out ...\n2: two\n3:\n4: four\n... 2 lines left out ...", [(2, 4)]),
        (
            ["  five.", " End."],
            "... 4 lines left out ...\n5:   five. ... End.\n... 1 line left out ...",
            [(5, 5)],
        ),
        ([" And more."], "... 4 lines left out ...\n5: ... And more. ...\n... 1 line left out ...", [(5, 5)]),
        (["\n\n"], "... 6 lines left out ...", []),
        ([TEXT], "1: one\n2: two\n3:\n4: four\n5:   five. And more. End.\n6: six", [(1, 6)]),
    ],
)
def test_the_kept_lines_are_shown_with_their_numbers(kept, shown, lines):
    assert kept_lines(TEXT, spans(*kept)) == (shown, lines)


def test_every_line_is_shown_or_counted():
    draw = random.Random(3)
    for _ in range(300):
        lines = [draw.choice(["", "  ", "a b", "ccc. ddd"]) for _ in range(draw.randrange(1, 12))]
        text = "\n".join(lines)
        edges = sorted(draw.sample(range(len(text) + 1), min(len(text) + 1, 2 * draw.randrange(3))))
        kept = [pair for pair in zip(edges[::2], edges[1::2], strict=False) if pair[0] < pair[1]]
        shown, ranges = kept_lines(text, kept)
        wanted = {
            number
            for number, line in enumerate(lines, 1)
            for begin in [sum(map(len, lines[: number - 1])) + number - 1]
            if any(text[max(a, begin) : min(b, begin + len(line))].strip() for a, b in kept)
        }
        told = {number for first, last in ranges for number in range(first, last + 1)}
        assert {number for number in told if lines[number - 1].strip()} == wanted
        counted = sum(int(line.split()[1]) for line in shown.split("\n") if line.endswith("left out ..."))
        missing = [number for number, line in enumerate(lines, 1) if line.strip() and number not in wanted]
        assert counted >= len(missing)
        assert bool(counted) == bool(missing)


def one_token_per_char(rendered):
    return np.array([(i, i + 1) for i in range(len(rendered))], np.int64)


def kept_of(text, rendered, span, positions, scores=None):
    [placed] = placed_texts([text], rendered, [span], one_token_per_char(rendered))
    size = len(rendered)
    kept = KeptPrompt(np.zeros(len(positions), np.int32), np.array(positions, np.int32), size)
    scores = np.ones(size, np.float32) if scores is None else scores
    selection = Selection(kept, 0.5, unit_scores=scores)
    options = SelectionOptions(granularity="chunk", chunk_size=1)
    return SelectedPrompt(selection, options, TextLayout()).as_json(placed, scores=True)


@pytest.mark.parametrize("write", [str, json.dumps])
def test_spans_are_of_the_clients_text(write):
    """Also where the template strips it, or writes it inside a JSON string."""
    text = '\n\n  say "hello"\tto\nthe end '
    rendered = "<user>" + (text.strip() if write is str else json.dumps(text.strip())) + "<end>"
    inner = text.strip() if write is str else json.dumps(text.strip())[1:-1]
    start = rendered.index(inner)
    wanted = '"hello"'
    piece = wanted if write is str else json.dumps(wanted)[1:-1]
    first = rendered.index(piece)
    told = kept_of(text, rendered, (start, start + len(inner)), range(first, first + len(piece)))
    assert [text[a:b] for a, b in told["spans"]] == [wanted]
    assert told["lines"] == [(3, 3)]
    assert "".join(text[one["start"] : one["end"]] for one in told["units"]).startswith("say")


def test_the_tokens_are_looked_through_once_for_all_texts(monkeypatch):
    calls, spans = [], [(3 * i, 3 * i + 2) for i in range(40)]

    def noted(*arguments):
        calls.append(arguments)
        return tokens_touched_by_each(*arguments)

    monkeypatch.setattr(selected_text, "tokens_touched_by_each", noted)
    placed = placed_texts(["ab"] * 40, "ab " * 40, spans, one_token_per_char("ab " * 40))
    assert [one.tokens for one in placed] == spans
    assert len(calls) == 1


def test_coverage_and_usage_are_of_the_text_alone():
    scores = np.array([9, 9, 1, 2, 3, 4, 9], np.float32)
    told = kept_of("abcd", "<>abcd!", (2, 6), [0, 3, 5, 6], scores)
    assert told["coverage"] == pytest.approx(0.6)
    assert told["usage"] == {"prompt_tokens": 4, "kept_tokens": 2, "dropped_tokens": 2}
    assert [one["score"] for one in told["units"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(("positions", "spans"), [([0, 3], [(3, 4)]), ([0, 1, 3], [(0, 2), (3, 4)])])
def test_the_first_token_alone_is_not_shown(positions, spans):
    """It is in every kept prompt, and a template may have nothing before the text. So are tokens that the template
    shares with the text."""
    told = kept_of("abcd", "abcd", (0, 4), positions)
    assert told["spans"] == spans
    assert told["usage"]["kept_tokens"] == len(positions)


@pytest.mark.parametrize(
    ("positions", "spans"), [([1, 3, 5], [(2, 3)]), ([1, 2, 5], [(0, 2)]), ([1, 4, 5], [(3, 5)]), ([1, 5], [])]
)
def test_tokens_that_the_template_shares_are_not_shown_alone(positions, spans):
    rendered = "<:abcde:>"  # tokens: <, :a, b, c, d, e:, >
    ranges = np.array([(0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 8), (8, 9)], np.int64)
    [placed] = placed_texts(["abcde"], rendered, [(2, 7)], ranges)
    kept = KeptPrompt(np.zeros(len(positions), np.int32), np.array(positions, np.int32), 7)
    selected = SelectedPrompt(Selection(kept, 0.5), SelectionOptions(), TextLayout())
    assert selected.as_json(placed, scores=False)["spans"] == spans
