"""The header that tells how many requests follow with the same beginning."""

import pytest

from router.forecast import Forecaster
from router.later_requests import LATER_REQUESTS, MOST, read_later_requests
from router.options import InvalidOptionError
from tests.unit.router.asking import ENDPOINTS, request_body


@pytest.mark.parametrize(("text", "number"), [(None, None), ("0", 0), ("7", 7), (" 12 ", 12), (str(MOST), MOST)])
def test_the_number_is_read(text, number):
    assert read_later_requests({} if text is None else {LATER_REQUESTS: text}) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "1e2", str(MOST + 1), "9" * 5000, "٣"])
def test_a_wrong_number_is_refused_by_name(text):
    with pytest.raises(InvalidOptionError, match="from 0 to 1000") as caught:
        read_later_requests({LATER_REQUESTS: text})
    assert caught.value.param == LATER_REQUESTS


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_it_acts_or_is_refused_on_every_endpoint(path, served, use_pools, document, monkeypatch):
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
