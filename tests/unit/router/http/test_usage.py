"""What was dropped stands in the usage of an answer, and nothing else of the answer changes."""

import json

import pytest

from router.http.response import with_losses, with_original_tokens

LOST = {"kept_tokens": 30, "dropped_tokens": 70, "largest_dropped": {"role": "tool", "tokens": 60}}
DENSE = {"kept_tokens": 100, "dropped_tokens": 0}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.mark.parametrize("given", [None, {"cached_tokens": 5}])
def test_details_are_added_to_those_of_the_server(given):
    sent = {"id": "x", "usage": {"prompt_tokens": 100, "prompt_tokens_details": given}, "n": 1.50}
    told = json.loads(with_losses(json.dumps(sent).encode(), CHAT, LOST))
    assert told == {**sent, "usage": {"prompt_tokens": 100, "prompt_tokens_details": {**(given or {}), **LOST}}}
    assert list(told) == list(sent)


def test_all_other_bytes_stay():
    before, after = b'data: {"choices":[{"text":"\\u00e9 \xc3\xa9 1.50"}],"x":1e3,', b"}\n\ndata: [DONE]\n\n"
    body = with_losses(before + b'"usage":{"a":1}' + after, CHAT, DENSE)
    assert body.startswith(before)
    assert body.endswith(after)


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"usage":null}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"usage\\":{}"}}]}\n\n',
        b'{"output":[{"usage":{"a":1}}]}',
        b'{"usage":{"a":1}',
        b'{"usage":[1]}',
        b'"usage"',
        b'event: "usage"\ndata: x\n\n',
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_what_holds_no_usage_of_an_answer_stays(body, path):
    assert with_losses(body, path, LOST) == body


def test_paths_without_a_form_stay():
    assert with_losses(b'{"usage":{}}', "/v1/embeddings", LOST) == b'{"usage":{}}'


def test_the_events_of_responses_hold_the_answer():
    [told] = _events(with_losses(b'event: a\ndata: {"type":"a","response":{"usage":{"x":1}}}\n\n', RESPONSES, LOST))
    assert told == {"type": "a", "response": {"usage": {"x": 1, "input_tokens_details": LOST}}}


@pytest.mark.parametrize(("losses", "edits"), [(LOST, 1), (DENSE, 0)])
def test_messages_list_the_edit(losses, edits):
    events = b'data: {"type":"message_start","message":{"usage":{}}}\n\ndata: {"type":"message_delta","usage":{}}\n\n'
    start, delta = _events(with_losses(events, MESSAGES, losses))
    assert start["message"]["usage"] == delta["usage"] == {"input_tokens_details": losses}
    edit = {"type": "skim_selection", "cleared_input_tokens": 70}
    assert "context_management" not in start["message"]  # Anthropic's client would warn of the type
    assert delta.get("context_management") == ({"applied_edits": [edit]} if edits else None)


def test_the_client_s_edits_stand_beside_the_usage():
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 9}
    for path in (CHAT, MESSAGES):
        told = json.loads(with_losses(b'{"usage":{"a":1}}', path, {}, [edit]))
        assert told == {"usage": {"a": 1}, "context_management": {"applied_edits": [edit]}}
    told = json.loads(with_losses(b'{"response":{"usage":{"a":1}}}', RESPONSES, {}, [edit]))
    assert told["response"]["context_management"] == {"applied_edits": [edit]}
    both = json.loads(with_losses(b'{"usage":{}}', MESSAGES, LOST, [edit]))["context_management"]["applied_edits"]
    assert [one["type"] for one in both] == [edit["type"], "skim_selection"]
    counted = b'{"input_tokens":5,"context_management":{"original_input_tokens":5}}'
    assert json.loads(with_original_tokens(counted, [edit]))["context_management"] == {"original_input_tokens": 14}
    assert json.loads(with_original_tokens(b'{"type":"error"}', [edit])) == {"type": "error"}


def _events(body):
    return [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n") if line.startswith(b"data: ")]
