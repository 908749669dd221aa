"""The headers that limit a request's time."""

import pytest

from router.options import InvalidOptionError
from router.timeout_headers import LONGEST_MS, PROXY_TIMEOUT, TIMEOUT, read_deadline


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
        ({TIMEOUT: str(LONGEST_MS)}, None, 10 + LONGEST_MS / 1e3),
    ],
)
async def test_the_deadline_of_a_request(headers, default_s, at):
    assert read_deadline(headers, default_s, arrived=10.0).at == at


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "soon", "1e3", str(LONGEST_MS + 1), "9" * 5000, "٣"])
async def test_a_wrong_header_is_refused_by_name(text):
    with pytest.raises(InvalidOptionError, match="milliseconds") as caught:
        read_deadline({TIMEOUT: text}, None, arrived=0.0)
    assert caught.value.param == TIMEOUT
