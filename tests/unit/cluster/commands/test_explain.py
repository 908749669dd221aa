"""`skim explain`: where a page's numbers and text come from, and the command in this process on the demo models."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from cluster.commands.flags import SelectionFlags
from cluster.commands.select import explained_by, explained_now, read_prompt_file
from cluster.explain.page import PromptText, read_token_text
from demo_models.documents import make_document
from skim.engines import PairEngines
from skim_common.errors import SkimError
from tests.unit.cluster.explain.test_page import data_of
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = MODELS / "speculator", MODELS / "target"


def selected(prompt, **options):
    """The explanation, and the text of the prompt's tokens."""
    flags = SelectionFlags("0.1", json.dumps(options), "mock")
    explanation, rendered = explained_now(prompt, SPECULATOR, str(TARGET), flags)
    return SimpleNamespace(explanation=explanation, prompt=PromptText.of(rendered, read_token_text(str(TARGET))))


def test_a_chat_is_selected_from_as_in_serving():
    document = make_document(1500, seed=3)
    messages = [{"role": "system", "content": "Be brief."}, *document.messages]
    found = selected(messages)
    explanation, prompt = found.explanation, found.prompt
    assert [message.role for message in prompt.messages] == ["user"]
    reasons = {span["reason"] for span in explanation["spans"]}
    assert reasons == {"protected", "top"}
    kept = "".join(prompt.text[prompt.cuts[s["start"]] : prompt.cuts[s["end"]]] for s in explanation["spans"])
    assert document.question in kept
    assert "Be brief." in kept
    assert document.document in prompt.text
    assert prompt.cuts.size == explanation["prompt_tokens"] + 1


def test_heads_are_found_first(monkeypatch):
    told = []

    async def ensure_heads(pair):
        told.append(pair)

    monkeypatch.setattr(PairEngines, "ensure_heads", ensure_heads)
    selected("The first line of a text.\n" * 20)
    assert len(told) == 1


def test_spans_that_the_client_protects_are_kept():
    plain, asked = selected("word " * 400), selected("word " * 400, protected_spans=[[100, 140]])
    wanted = {"start": 100, "end": 140, "reason": "protected"}
    assert wanted in [{name: span[name] for name in wanted} for span in asked.explanation["spans"]]
    assert wanted not in [{name: span[name] for name in wanted} for span in plain.explanation["spans"]]


def test_a_raw_text_has_no_messages():
    found = selected("word " * 400)
    explanation, prompt = found.explanation, found.prompt
    assert prompt.messages == []
    assert "word word" in prompt.text
    assert explanation["options"]["keep_rate"] == 0.1


@pytest.mark.parametrize(
    ("name", "content", "chat", "read"),
    [
        ("a.txt", "hello", False, "hello"),
        ("a.txt", "hello", True, [{"role": "user", "content": "hello"}]),
        ("a.json", '[{"role": "user", "content": "x"}]', False, [{"role": "user", "content": "x"}]),
        ("a.json", '{"model": "m", "messages": [{"role": "user"}]}', False, [{"role": "user"}]),
    ],
)
def test_the_forms_of_a_prompt(tmp_path, name, content, chat, read):
    file = tmp_path / name
    file.write_text(content)
    assert read_prompt_file(file, chat=chat) == read


@pytest.mark.parametrize("content", ["[]", "{}", "[1]", '"text"', '{"messages": "x"}'])
def test_a_json_file_without_messages_is_refused(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(SkimError, match="must hold a list of chat messages"):
        read_prompt_file(file, chat=False)


@contextmanager
def endpoint(status, body):
    """A server that answers every GET with `body`; gives its address and the requests that it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            got.append((self.path, self.headers.get("authorization")))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def test_what_the_endpoint_kept_with_the_text_of_a_file(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    kept = selected("word " * 400)
    with endpoint(200, json.dumps(kept.explanation)) as (url, got):
        found, rendered = explained_by(f"{url}/v1/", "chatcmpl-1/2", "word " * 400, str(TARGET))
        with pytest.raises(SkimError, match=r"the prompt has \d+ tokens for .*, the request had \d+"):
            explained_by(url, "r1", "word " * 300, str(TARGET))
    assert got[0] == ("/v1/requests/chatcmpl-1%2F2/selection", "Bearer secret")
    assert found["spans"] == kept.explanation["spans"]
    assert PromptText.of(rendered, read_token_text(str(TARGET))).text == kept.prompt.text


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, '{"error": {"message": "no selection is held for r1"}}', "answered 404: no selection is held for r1"),
        (401, '{"error": "Unauthorized"}', "answered 401: Unauthorized"),
        (200, "[]", "answered 200: it is no Skim endpoint"),
        (502, "<html>", "did not answer"),
    ],
)
def test_what_the_endpoint_says_is_one_sentence(status, body, message):
    with endpoint(status, body) as (url, _), pytest.raises(SkimError, match=message):
        explained_by(url, "r1", "words", str(TARGET))


def test_no_endpoint():
    with pytest.raises(SkimError, match="did not answer"):
        explained_by("http://127.0.0.1:9", "r1", "words", str(TARGET))


def test_a_page_of_a_chat(skim, tmp_path):
    document = make_document(1200, seed=5)
    prompt, page = tmp_path / "chat.json", tmp_path / "page.html"
    prompt.write_text(json.dumps(document.messages))
    options = '{"coverage": 0.5, "look_ahead": 2}'
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--target", TARGET, "--engine", "mock", "-o", page)
    ran = skim("explain", *words, "--options", options)
    assert ran.code == 0, ran.err
    data = data_of(page.read_text(encoding="ascii"))
    assert document.document in "".join(piece[4] for piece in data["pieces"])
    assert [group["name"] for group in data["groups"]] == ["protected", "coverage", "dropped"]
    assert ["coverage", "0.5"] in data["details"]
    assert f"of {data['tokens']} tokens kept" in " ".join(ran.err.split())


REQUEST = ("--request", "r1", "--prompt", __file__, "--target", "t")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --prompt and --speculator, or --request"),
        (("--prompt", "chat.json", "--speculator", "s"), "cannot read chat.json"),
        (("--request", "r1", "--target", "t"), "give --prompt and --speculator, or --request"),
        ((*REQUEST, "--url", "http://127.0.0.1:9"), "did not answer"),
        ((*REQUEST, "--url", "nonsense"), "did not answer"),
    ],
)
def test_mistakes_are_one_line(skim, tmp_path, words, message):
    ran = skim("explain", "-o", tmp_path / "page.html", *words)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert not (tmp_path / "page.html").exists()


def test_a_wrong_option_names_itself(skim, tmp_path):
    prompt = tmp_path / "a.txt"
    prompt.write_text("words")
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--engine", "mock", "-o", tmp_path / "page.html")
    ran = skim("explain", *words, "--options", '{"keeprate": 1}')
    assert ran.code == 2
    assert "unknown option speculative_prefill.keeprate" in " ".join(ran.err.split())


def test_a_page_that_cannot_be_written(skim, tmp_path):
    prompt = tmp_path / "a.txt"
    prompt.write_text("words " * 50)
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--engine", "mock", "-o", tmp_path / "no" / "page.html")
    ran = skim("explain", *words)
    assert ran.code == 2
    assert "cannot write" in ran.err
