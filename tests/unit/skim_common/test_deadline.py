"""The deadline of a request, in virtual time."""

import asyncio
from contextlib import aclosing

import pytest

from benchmarks.harness.virtual_time import run
from skim_common.deadline import Deadline
from skim_common.errors import DeadlineError


class Stream:
    """Items after pauses in seconds. closed: its generator has ended."""

    def __init__(self, *pauses):
        self.pauses, self.closed = pauses, False

    async def items(self):
        try:
            for pause in self.pauses:
                await asyncio.sleep(pause)
                yield pause
        finally:
            self.closed = True


async def collect(stream, timeout_ms, pause=0.0):
    """The items until the error, if any. pause: of the consumer after each item, in seconds."""
    got = []
    try:
        deadline = Deadline.after(timeout_ms)
        async with aclosing(stream.items()) as items:
            while (item := await deadline.next(items)) is not None:
                got.append(item)
                await asyncio.sleep(pause)
    except DeadlineError:
        return got, True
    return got, False


@pytest.mark.parametrize(
    ("timeout_ms", "expected"), [(None, ([1, 2, 3], False)), (6500, ([1, 2, 3], False)), (3500, ([1, 2], True))]
)
def test_a_stream_ends_at_its_deadline(timeout_ms, expected):
    stream = Stream(1, 2, 3)
    assert run(collect(stream, timeout_ms)) == expected
    assert stream.closed


def test_a_slow_consumer_is_not_cancelled_but_gets_no_more_items():
    stream = Stream(1, 1)
    assert run(collect(stream, 3000, pause=10)) == ([1], True)
    assert stream.closed


def test_the_time_that_is_left_travels():
    async def left():
        first = Deadline.after(5000)
        await asyncio.sleep(2)
        second = Deadline.after(first.left_ms)
        await asyncio.sleep(9)
        return second.left_ms, second.at - first.at, Deadline().left_ms

    assert run(left()) == (0.0, 0.0, None)


def test_a_check_refuses_what_is_over():
    async def check(timeout_ms):
        deadline = Deadline.after(timeout_ms)
        await asyncio.sleep(1)
        deadline.check()

    run(check(None))
    run(check(1001))
    with pytest.raises(DeadlineError):
        run(check(1000))


def test_a_timeout_of_another_origin_is_no_deadline():
    async def other():
        async with Deadline.after(9000).limit():
            raise TimeoutError("of a library")

    with pytest.raises(TimeoutError, match="of a library"):
        run(other())
