"""Where a page's numbers and text come from."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from cluster.explain.prompt_text import PromptText
from cluster.explain.sources import from_prompt, from_request, read_prompt_file
from cluster.in_process.async_pair import AsyncPair
from demo_models.documents import make_document
from router.options.request import PrefillOptions
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = str(MODELS / "speculator"), str(MODELS / "target")


def selected(prompt, **options):
    chosen = PrefillOptions(keep_rate=0.1, **options)
    return from_prompt(prompt, SPECULATOR, TARGET, chosen, engine="mock")


def test_a_chat_is_selected_from_as_in_serving():
    document = make_document(1500, seed=3)
    messages = [{"role": "system", "content": "Be brief."}, *document.messages]
    explanation, prompt = selected(messages)
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

    monkeypatch.setattr(AsyncPair, "ensure_heads", ensure_heads)
    selected("The first line of a text.\n" * 20)
    assert len(told) == 1


def test_spans_that_the_client_protects_are_kept():
    plain, asked = selected("word " * 400), selected("word " * 400, protected_spans=[[100, 140]])
    wanted = {"start": 100, "end": 140, "reason": "protected"}
    assert wanted in [{name: span[name] for name in wanted} for span in asked.explanation["spans"]]
    assert wanted not in [{name: span[name] for name in wanted} for span in plain.explanation["spans"]]


def test_a_raw_text_has_no_messages():
    explanation, prompt = selected("word " * 400)
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


def test_what_the_endpoint_kept_with_the_text_of_a_file():
    explanation, prompt = selected("word " * 400)
    with endpoint(200, json.dumps(explanation)) as (url, got):
        found, text = from_request(f"{url}/v1/", "chatcmpl-1/2", "word " * 400, TARGET, key="secret")
        with pytest.raises(SkimError, match=r"the prompt has \d+ tokens for .*, the request had \d+"):
            from_request(url, "r1", "word " * 300, TARGET)
    assert got[0] == ("/v1/requests/chatcmpl-1%2F2/selection", "Bearer secret")
    assert found["spans"] == explanation["spans"]
    assert isinstance(text, PromptText)
    assert text.text == prompt.text


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
        from_request(url, "r1", "words", TARGET)


def test_no_endpoint():
    with pytest.raises(SkimError, match="did not answer"):
        from_request("http://127.0.0.1:9", "r1", "words", TARGET)
