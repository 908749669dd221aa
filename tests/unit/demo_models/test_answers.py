"""Lines of a stream as a client reads them, with the router's error event."""

import pytest

from demo_models.answers import read_event, read_server_timing
from router.http.response import write_error_event
from router.options.errors import HttpError
from skim_common.errors import SkimError


@pytest.mark.parametrize("line", ["", "data: [DONE]", "event: error", ": ping", b"data: [DONE]\n"])
def test_other_lines_are_no_events(line):
    assert read_event(line) is None


def test_events_as_text_and_as_bytes():
    assert read_event('data: {"id": "é"}') == read_event('data: {"id": "é"}\n'.encode()) == {"id": "é"}


def test_the_routers_error_is_read_as_one():
    name, data, *_ = write_error_event(HttpError(503, "ServiceUnavailableError", "no replica").body()).splitlines()
    assert name == b"event: error"
    with pytest.raises(SkimError, match="ended with an error: no replica"):
        read_event(data)


def test_an_error_of_another_shape():
    with pytest.raises(SkimError, match="ended with an error: overloaded"):
        read_event('data: {"error": "overloaded"}')


def test_the_times_of_a_header_are_read_in_their_order():
    assert list(read_server_timing("queue;dur=0.12, total;dur=9.50").items()) == [("queue", 0.12), ("total", 9.5)]
    assert read_server_timing("") == {}
