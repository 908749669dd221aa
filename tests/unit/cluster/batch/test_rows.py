"""Which rows are usable, and the error of those that are not."""

import json

import msgspec
import pytest

from cluster.batch.rows import ENDPOINTS, BatchAnswer, Response, RowFault, UnusableRowError, parse, usage_of
from tests.unit.cluster.batch.conftest import row


@pytest.mark.parametrize("url", ENDPOINTS)
def test_every_endpoint_of_skim_can_be_asked(url: str) -> None:
    option = {"keep_rate": 0.1}
    request = parse(json.dumps({**row("a", speculative_prefill=option), "url": url}).encode())
    assert (request.custom_id, request.url, request.body["speculative_prefill"]) == ("a", url, option)


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert parse(b"\xef\xbb\xbf" + json.dumps(row("a")).encode()).custom_id == "a"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"method": "GET"}, "invalid_method", "method must be POST, not 'GET'"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url must be one of /v1/chat/completions, .* not '/v1/embeddings'"),
        ({"body": {"stream": True}}, "invalid_request", "a batch cannot stream"),
        ({"body": None}, "invalid_request", r"Expected `object`, got `null` - at `\$.body`"),
        ({"body": []}, "invalid_request", r"Expected `object`, got `array` - at `\$.body`"),
    ],
)
def test_an_unusable_row_keeps_its_custom_id(change: dict[str, object], code: str, message: str) -> None:
    with pytest.raises(UnusableRowError, match=message) as raised:
        parse(json.dumps({**row("a"), **change}).encode())
    assert (raised.value.fault.code, raised.value.custom_id) == (code, "a")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"custom_id": "a"', "invalid_json_line"),
        (b"\xff\xfe", "invalid_json_line"),
        (b"[" * 100_000, "invalid_json_line"),
        (b"[1]", "invalid_request"),
        (b'"text"', "invalid_request"),
        (b'{"custom_id": 7, "method": "POST", "url": "/v1/responses", "body": {}}', "invalid_request"),
        (b'{"method": "POST", "url": "/v1/responses", "body": {}}', "invalid_request"),
    ],
)
def test_a_row_without_a_name_can_still_be_reported(line: bytes, code: str) -> None:
    with pytest.raises(UnusableRowError) as raised:
        parse(line)
    assert (raised.value.fault.code, raised.value.custom_id) == (code, None)


def test_answers_have_openais_form() -> None:
    said = BatchAnswer("batch_req_1", "a", Response(200, "chatcmpl-1", {"choices": []}), None)
    assert json.loads(msgspec.json.encode(said)) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "chatcmpl-1", "body": {"choices": []}},
        "error": None,
    }
    told = msgspec.json.encode(Response(200, "chatcmpl-1", {}, {"x-skim-mode": "dense"}))
    assert json.loads(told)["headers"] == {"x-skim-mode": "dense"}
    unsaid = BatchAnswer("batch_req_2", None, None, RowFault("invalid_json_line", "line 2: ..."))
    assert json.loads(msgspec.json.encode(unsaid))["error"] == {"code": "invalid_json_line", "message": "line 2: ..."}
    refused = BatchAnswer("batch_req_3", "c", Response(400, "", {}), None)
    assert [answer.failed for answer in (said, unsaid, refused)] == [False, True, True]


def test_tokens_are_counted_on_every_endpoint() -> None:
    assert usage_of({"usage": {"prompt_tokens": 7, "completion_tokens": 2}}) == (7, 2)
    assert usage_of({"usage": {"input_tokens": 7, "output_tokens": 2}}) == (7, 2)
    for nothing in ("text", {}, {"usage": None}, {"usage": {"prompt_tokens": None}}):
        assert usage_of(nothing) == (0, 0)
