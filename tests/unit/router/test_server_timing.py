"""A client reads from `Server-Timing` what the router has written."""

from router.server_timing import read_server_timing, write_server_timing


def test_written_parts_are_read_in_their_order():
    header = write_server_timing({"total": 9.5, "prefill": 2, "queue": 0.125, "other": 1.0})
    assert header == "queue;dur=0.12, prefill;dur=2.00, total;dur=9.50"
    assert list(read_server_timing(header).items()) == [("queue", 0.12), ("prefill", 2.0), ("total", 9.5)]


def test_no_header_no_parts():
    assert read_server_timing("") == {}
