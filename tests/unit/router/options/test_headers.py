"""Headers that limit a request's time, tell how many requests follow, and report its times."""

import pytest

from router.decision.forecast import Forecaster
from router.options.errors import InvalidOptionError
from router.options.headers import (
    LATER_REQUESTS,
    MAX_LATER_REQUESTS,
    MAX_TIMEOUT_MS,
    PROXY_TIMEOUT,
    TIMEOUT,
    read_deadline,
    read_later_requests,
    whole_number,
    write_server_timing,
)
from tests.unit.router.asking import ENDPOINTS, request_body


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), (" 17 ", 17), ("0" * 5000 + "17", 17), ("0" * 5000, 0), (str(10**18), 10**18)],
)
def test_a_whole_number_is_read(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", " ", "-1", "+1", "1.5", "1e2", "1_0", "0x1", "many", "٣", "\xb3"])
def test_what_is_no_whole_number(text):
    assert whole_number(text) is None


def test_a_number_that_is_longer_than_int_reads_is_large():
    assert whole_number("9" * 5000) >= 10**18


@pytest.mark.parametrize(
    ("headers", "default_s", "at"),
    [
        ({}, None, None),
        ({}, 3.0, 13.0),
        ({TIMEOUT: "2500"}, None, 12.5),
        ({TIMEOUT: "2500"}, 1.0, 12.5),
        ({PROXY_TIMEOUT: "1500"}, 3.0, 11.5),
        ({PROXY_TIMEOUT: "1500", TIMEOUT: "500"}, 3.0, 10.5),
        ({PROXY_TIMEOUT: "1500", TIMEOUT: "5000"}, None, 11.5),
        ({PROXY_TIMEOUT: "0"}, None, None),
        ({TIMEOUT: str(MAX_TIMEOUT_MS)}, None, 10 + MAX_TIMEOUT_MS / 1e3),
    ],
)
async def test_the_deadline_of_a_request(headers, default_s, at):
    assert read_deadline(headers, default_s, arrived=10.0).at == at


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "soon", "1e3", str(MAX_TIMEOUT_MS + 1), "9" * 5000, "٣"])
async def test_a_wrong_header_is_refused_by_name(text):
    with pytest.raises(InvalidOptionError, match="milliseconds") as caught:
        read_deadline({TIMEOUT: text}, None, arrived=0.0)
    assert caught.value.param == TIMEOUT


@pytest.mark.parametrize(("text", "number"), [(None, None), ("0", 0), ("7", 7), (" 12 ", 12), ("1000", 1000)])
def test_the_number_of_later_requests_is_read(text, number):
    assert read_later_requests({} if text is None else {LATER_REQUESTS: text}) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "1e2", str(MAX_LATER_REQUESTS + 1), "9" * 5000, "٣"])
def test_a_wrong_number_of_later_requests_is_refused_by_name(text):
    with pytest.raises(InvalidOptionError, match="from 0 to 1000") as caught:
        read_later_requests({LATER_REQUESTS: text})
    assert caught.value.param == LATER_REQUESTS


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_later_requests_act_or_are_refused_on_every_endpoint(path, served, use_pools, document, monkeypatch):
    """A router that has measured nothing runs a prompt speculative, unless many later requests are told."""

    async def reason(headers):
        monkeypatch.setattr(served.dispatcher, "forecaster", Forecaster())
        use_pools()
        body = request_body(path, document, speculative_prefill={"enabled": "auto", "keep_rate": 0.25})
        answer = await served.client.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return f"{answer.headers['x-skim-mode']} {answer.headers['x-skim-reason']}"

    assert await reason({}) == await reason({LATER_REQUESTS: "0"}) == "speculative unmeasured"
    assert await reason({LATER_REQUESTS: "1000"}) == "dense later-turns"
    refused = await served.client.post(path, json=request_body(path, document), headers={LATER_REQUESTS: "many"})
    assert refused.status_code == 400
    assert f"header {LATER_REQUESTS} must be a whole number from 0 to 1000, not" in refused.text


def test_written_parts_are_read_in_their_order():
    header = write_server_timing({"total": 9.5, "prefill": 2, "queue": 0.125, "other": 1.0})
    assert header == "queue;dur=0.12, prefill;dur=2.00, total;dur=9.50"
