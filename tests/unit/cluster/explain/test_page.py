"""The page as a file: what it holds, and that no prompt can leave its place in it."""

import html
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.explain.page import PromptText, explain_page, visible
from router.prompt.rendered import MessageSpan
from skim_common.errors import InvalidRequestError
from tests.unit.cluster.explain.explained import counted, explained, of_text, of_tokens

HOSTILE = (
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> &lt; @DATA@ @TITLE@ "
    "\x00\x07\x1b[31m\r\x7f\x85 \u202egnihtemos\u202c \u2066x\u2069 \u200b\ufeff \u2028 \ud800 \udfff "
    "\U000e0041 '\"`${alert(3)}\\"
)


def data_of(page: str):
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_the_pieces_are_the_prompt_and_their_groups_the_reasons():
    explanation, prompt = of_tokens(3000, later_turn=True, protected=[[0, 40], [2900, 3000]])
    data = data_of(explain_page(explanation, prompt))
    assert "".join(text for *_, text in data["pieces"]) == prompt.text
    assert [piece[0] for piece in data["pieces"]] == [0, *(piece[1] for piece in data["pieces"][:-1])]
    names = [group["name"] for group in data["groups"]]
    assert names == ["protected", "reused", "appended", "new", "dropped"]
    wanted = counted(explanation)
    tokens = dict.fromkeys(names, 0)
    for start, end, group, chunk, _ in data["pieces"]:
        assert start // 32 == (end - 1) // 32 == chunk
        tokens[names[group]] += end - start
    assert tokens == {**wanted.by_reason, "dropped": wanted.dropped}
    assert {group["name"]: group["tokens"] for group in data["groups"]} == tokens


def test_a_message_begins_and_ends_at_the_edge_of_a_piece():
    explanation, prompt = of_tokens(1000)
    data = data_of(explain_page(explanation, prompt))
    edges = {edge for piece in data["pieces"] for edge in piece[:2]}
    assert [message["role"] for message in data["messages"]] == ["user", "assistant", "user"]
    assert {edge for message in data["messages"] for edge in (message["start"], message["end"])} <= edges


def test_a_hostile_prompt_stays_data():
    explanation, prompt = of_text(HOSTILE * 3)
    page = explain_page(explanation, prompt, title=HOSTILE, notes=[(HOSTILE, HOSTILE)])
    assert page.isascii()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
    quiet = explain_page(*of_text("x" * len(HOSTILE * 3)))
    for tag in ("<script", "</script", "<img", "<!--"):
        assert page.count(tag) == quiet.count(tag)
    data = data_of(page)
    assert "".join(text for *_, text in data["pieces"]) == visible(HOSTILE * 3)
    assert data["notes"] == [[visible(HOSTILE), visible(HOSTILE)]]
    assert html.escape(visible(HOSTILE))[:60] in page


def test_the_control_an_unescaped_prompt_would_leave_its_place():
    explanation, prompt = of_text("</script><b>out</b>" * 3)
    page = explain_page(explanation, prompt)
    unescaped = page.replace("\\u003c", "<").replace("\\u003e", ">")
    with pytest.raises(json.JSONDecodeError):
        data_of(unescaped)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x00\x1b\r", "⟦U+0000⟧⟦U+001B⟧⟦U+000D⟧"),
        ("\u202eabc\u2069", "⟦U+202E⟧abc⟦U+2069⟧"),
        ("\ud800", "⟦U+D800⟧"),
        ("\u200b\ufeff\U000e0041", "⟦U+200B⟧⟦U+FEFF⟧⟦U+E0041⟧"),
        ("👩\u200d🚀 שלום نص", "👩\u200d🚀 שלום نص"),
    ],
)
def test_what_cannot_be_seen_is_named(text, shown):
    assert visible(text) == shown


@given(st.text(st.characters(codec=None), min_size=1, max_size=200))
def test_any_text_comes_back(text):
    explanation, prompt = of_text(text, protect_last=1)
    page = explain_page(explanation, prompt)
    assert page.isascii()
    assert "".join(piece[4] for piece in data_of(page)["pieces"]) == visible(text)


def test_text_of_other_tokens_is_refused():
    explanation, _ = of_tokens(1000)
    _, other = of_tokens(999)
    with pytest.raises(InvalidRequestError, match="the prompt's text has 999 tokens, the selection has 1000"):
        explain_page(explanation, other)


def test_a_dense_request_has_nothing_to_show():
    _, prompt = of_tokens(100)
    with pytest.raises(InvalidRequestError, match="its prompt ran dense"):
        explain_page({"prompt_tokens": 100, "kept_tokens": 100, "migrations": []}, prompt)


def test_a_catch_up_is_told():
    explanation, prompt = of_tokens(200)
    explanation["catch_up"] = {"state": "done", "tokens": 1204, "of": 1204, "agreement": 1.0}
    assert data_of(explain_page(explanation, prompt))["facts"][-1] == ["1,204", "of 1,204 read after the answer (done)"]


def test_an_unknown_reason_and_missing_scores_are_shown():
    """A newer server may give other reasons; an older speculator sends no scores."""
    explanation, prompt = of_tokens(200)
    explanation["spans"][0]["reason"] = "from tomorrow"
    explanation["unit_scores"] = None
    data = data_of(explain_page(explanation, prompt))
    assert "from tomorrow" in [group["label"] for group in data["groups"]]
    assert data["scores"] is None


def test_tokens_without_text_have_empty_pieces():
    """A character of several tokens belongs to the last of them."""
    prompt = PromptText("世", np.array([0, 0, 0, 1]), [MessageSpan("user", 0, 3)])
    data = data_of(explain_page(*explained(prompt, chunk_size=1, protect_last=1)))
    assert [piece[4] for piece in data["pieces"]] == ["", "", "世"]
