"""Rows that begin with the same long text are sent one after the other; all other rows keep their order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.batch import order
from cluster.batch.order import Window, prompt_of
from cluster.batch.rows import BatchRequest


def document(name: str, size: int = 4000) -> str:
    return "".join(random.Random(name).choices("abcdefghij ", k=size))


def ordered(prompts: list[str]) -> tuple[list[int], list[int]]:
    """(rows, later) of one window with these prompts."""
    window = Window()
    for prompt in prompts:
        window.add(prompt.encode(), len(prompt))
    taken = window.take()
    return [row for row, _ in taken], [later for _, later in taken]


def test_shuffled_questions_about_documents_come_together() -> None:
    a, b = document("a"), document("b")
    prompts = [f"{b} q3", f"{a} q1", "short", f"{b} q1", f"{a} q2", "another", f"{b} q2"]
    rows, later = ordered(prompts)
    assert rows == [0, 3, 6, 1, 4, 2, 5]
    assert later == [2, 1, 0, 1, 0, 0, 0]


def test_without_a_common_beginning_nothing_moves() -> None:
    assert ordered([document(f"{i}") for i in range(20)]) == (list(range(20)), [0] * 20)
    same = [f"{document('short', order.SHARED_BYTES - 10)} q{i}" for i in range(4)]
    assert ordered(same) == ([0, 1, 2, 3], [0] * 4)


def test_a_common_beginning_counts_as_a_part_of_the_prompt() -> None:
    """A long preamble before different documents is no reason to count them as the same."""
    preamble = document("preamble")
    assert ordered([preamble + document(f"{i}", 8000) for i in range(3)])[1] == [0, 0, 0]
    assert ordered([preamble + document(f"{i}", 800) for i in range(3)])[1] == [2, 1, 0]


def test_turns_of_a_conversation_are_one_group() -> None:
    turns = [document("chat", size) for size in (2000, 4000, 9000)]
    assert ordered([turns[0], document("else"), turns[1], turns[2]]) == ([0, 2, 3, 1], [2, 1, 0, 0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_each_row_is_sent_once_and_groups_stay_in_order(asked: list[tuple[int, int]]) -> None:
    texts = [document(f"{i}") for i in range(4)]
    rows, later = ordered([f"{texts[text]} {question}" for text, question in asked])
    assert sorted(rows) == list(range(len(asked)))
    groups = [asked[row][0] for row in rows]
    assert [group for i, group in enumerate(groups) if i == 0 or groups[i - 1] != group] == list(dict.fromkeys(groups))
    assert list(dict.fromkeys(groups)) == list(dict.fromkeys(text for text, _ in asked))
    assert later == [groups[i + 1 :].count(group) for i, group in enumerate(groups)]
    for group in set(groups):
        assert (own := [row for row in rows if asked[row][0] == group]) == sorted(own)


def test_a_window_is_full_by_bytes_or_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window()
    monkeypatch.setattr(order, "WINDOW_BYTES", 100)
    assert [window.add(b"x", 40) for _ in range(3)] == [False, False, True]
    window.take()
    monkeypatch.setattr(order, "WINDOW_ROWS", 2)
    assert [window.add(b"x", 1) for _ in range(2)] == [False, True]
    assert window.take() == [(0, 0), (1, 0)]
    assert window.take() == []


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "TEXT"}]}),
        ("/v1/completions", {"prompt": "TEXT"}),
        ("/v1/responses", {"instructions": "be brief", "input": "TEXT"}),
        ("/v1/messages", {"system": "be brief", "messages": [{"role": "user", "content": [{"text": "TEXT"}]}]}),
    ],
)
def test_the_prompt_of_each_endpoint(url: str, body: dict[str, object]) -> None:
    """Options do not divide prompts; what the engines read before the text does."""
    found = prompt_of(BatchRequest("a", "POST", url, {**body, "max_tokens": 3}))
    assert b"TEXT" in found
    assert prompt_of(BatchRequest("b", "POST", url, {**body, "max_tokens": 4})) == found
    salted = prompt_of(BatchRequest("b", "POST", url, {**body, "cache_salt": "other"}))
    assert salted[: found.index(b"TEXT")] != found[: found.index(b"TEXT")]
