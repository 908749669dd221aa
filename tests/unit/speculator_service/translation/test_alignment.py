"""Spans of characters, and importance carried between two tokenizations of one text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_service.translation import carried_importance, readable, spans_of_bytes, text_of


@st.composite
def pieces(draw):
    """Bytes that need not be UTF-8, in pieces that need not end where a character does."""
    data = draw(st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(pieces())
def test_a_token_covers_the_characters_that_its_bytes_belong_to(tokens):
    text = text_of(b"".join(tokens))
    owner = [i for i, character in enumerate(text) for _ in character.encode("utf-8", "surrogateescape")]
    spans = spans_of_bytes(text, np.array([len(token) for token in tokens]))
    begin = 0
    for token, (start, end) in zip(tokens, spans.tolist(), strict=True):
        assert list(range(start, end)) == sorted(set(owner[begin : begin + len(token)]))
        begin += len(token)


@given(st.binary(max_size=40))
def test_invalid_bytes_become_one_character_each(data):
    text = text_of(data)
    shown = readable(text)
    assert len(shown) == len(text)
    shown.encode()
    assert text.encode("utf-8", "surrogateescape") == data
    if text.isprintable():
        assert shown == text


@st.composite
def tokenizations(draw):
    """Importance and spans of some tokens, spans of others, and the number of characters."""
    characters = draw(st.integers(1, 30))

    def spans():
        ends = st.tuples(st.integers(0, characters), st.integers(0, characters)).map(sorted)
        return np.array(draw(st.lists(ends, min_size=1, max_size=12)), np.int64)

    own, others = spans(), spans()
    scores = st.floats(0, 1, width=32)
    return draw(st.lists(scores, min_size=len(own), max_size=len(own))), own, others, characters


def slowly_carried(importance, spans, to, characters):
    """The definition, one character at a time; None for a token without a covered character."""
    of = []
    for c in range(characters):
        covering = [w for w, (a, b) in zip(importance, spans, strict=True) if a <= c < b]
        of.append(np.mean(covering) if covering else None)
    means = []
    for a, b in to:
        known = [w for w in of[a:b] if w is not None]
        means.append(np.mean(known) if known else None)
    return means


@given(tokenizations())
def test_a_token_has_the_mean_of_its_characters(case):
    importance, spans, to, _ = case
    carried = carried_importance(*case)
    expected = slowly_carried(*case)
    assert carried.shape == (len(to),)
    assert np.isfinite(carried).all()
    for value, wanted in zip(carried, expected, strict=True):
        assert wanted is None or value == pytest.approx(wanted, abs=1e-9)
    covered = [w for w, (a, b) in zip(importance, spans, strict=True) if a < b]
    if covered and any(wanted is not None for wanted in expected):
        assert min(covered) <= carried.min()
        assert carried.max() <= max(covered)


def test_a_token_without_characters_lies_between_its_neighbours():
    spans = np.array([[0, 2], [2, 4]])
    carried = carried_importance([1.0, 3.0], spans, np.array([[0, 0], [0, 2], [2, 2], [2, 4], [4, 4]]), 4)
    assert carried.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0]


def test_no_common_characters():
    nothing = np.array([[0, 0], [0, 0]])
    assert carried_importance([0.2, 0.4], nothing, nothing, 0).tolist() == pytest.approx([0.3, 0.3])
