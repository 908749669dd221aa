"""The depth of a JSON text, against the depth of what `json.loads` makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.options.nesting import too_deep

TEXTS = st.text(alphabet='ab"\\[]{}:,\n \u00e9\u5b5b', max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def depth_of(value):
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32-be"])
@pytest.mark.parametrize("most", [0, 1, 3])
@given(value=VALUES, ascii_only=st.booleans())
def test_it_is_that_of_the_parsed_value(value, ascii_only, encoding, most):
    text = json.dumps(value, ensure_ascii=ascii_only).encode(encoding)
    assert too_deep(text, most) == (depth_of(value) > most)


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b'{"model": [[1]], "a\\"b": {"c": 1}, "tools" : %s', True),
        (b'{"x": "[[{", "messages": [{"content": %s', True),
        (b"[[%s", True),
        (b'{"a": "%s', False),
        (b'"%s', False),
    ],
)
def test_a_text_that_is_cut_off(monkeypatch, text, deep):
    """Also where the text is read in many parts."""
    assert too_deep(text % (b"[" * 200)) == deep
    monkeypatch.setattr("router.options.nesting._BLOCK", 3)
    assert too_deep(text % (b"[" * 200)) == deep
