"""Outputs that follow each other fast: what they say stays, and only their number changes."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from benchmarks.harness.virtual_time import run
from kv_transfer.messages import CUMULATIVE, Completion, GenerateOutput, GenerateRequest, KeptPrompt, TokenLogprob
from router.pools.answer_record import AnswerRecord
from skim_common.errors import EngineUnavailableError
from target_service.joined_outputs import join, joined


def output(*tokens, index=0, end=None, text=None, logprobs=False, **fields):
    ids = np.array(tokens, np.int32)
    told = [[TokenLogprob(token, -1.0)] for token in tokens] if logprobs else None
    text = "".join(f"<{token}>" for token in tokens) if text is None else text
    return GenerateOutput([Completion(index, text, ids, told, finish_reason=end)], end is not None, **fields)


class Stream:
    """One output after each pause in milliseconds. fails: with an error after the last."""

    def __init__(self, *pauses, fails=False):
        self.pauses, self.fails, self.closed = pauses, fails, False

    async def outputs(self):
        try:
            for token, pause in enumerate(self.pauses):
                await asyncio.sleep(pause / 1e3)
                last = token == len(self.pauses) - 1 and not self.fails
                yield output(token, end="stop" if last else None)
            if self.fails:
                raise EngineUnavailableError("the engine died")
        finally:
            self.closed = True


async def collect(stream, interval_ms):
    """The messages as (milliseconds, tokens), and whether an error came."""
    clock, got = asyncio.get_running_loop().time, []
    try:
        async with aclosing(joined(stream.outputs(), interval_ms, clock)) as messages:
            async for message in messages:
                [part] = message.completions
                got.append((round(1e3 * clock()), part.token_ids.tolist()))
                assert part.text == "".join(f"<{token}>" for token in part.token_ids)
    except EngineUnavailableError:
        return got, True
    return got, False


@pytest.mark.parametrize(
    ("interval_ms", "expected"),
    [
        (0, [(5, [0]), (10, [1]), (15, [2]), (20, [3]), (25, [4])]),
        (4, [(5, [0]), (10, [1]), (15, [2]), (20, [3]), (25, [4])]),
        (9, [(5, [0]), (15, [1, 2]), (25, [3, 4])]),
        (1000, [(5, [0]), (25, [1, 2, 3, 4])]),
    ],
)
def test_messages_keep_their_interval_but_for_the_first_and_the_last(interval_ms, expected):
    stream = Stream(5, 5, 5, 5, 5)
    assert run(collect(stream, interval_ms)) == (expected, False)
    assert stream.closed


def test_what_was_held_back_comes_before_an_error():
    stream = Stream(5, 5, 5, fails=True)
    assert run(collect(stream, 1000)) == ([(5, [0]), (15, [1, 2])], True)
    assert stream.closed


def test_a_consumer_that_leaves_closes_the_stream():
    stream = Stream(5, 5, 5)

    async def leave():
        async with aclosing(joined(stream.outputs(), 0)) as messages:
            await anext(messages)

    run(leave())
    assert stream.closed


def test_each_of_several_answers_grows_by_itself():
    both = join(output(1, logprobs=True), output(7, index=1, logprobs=True))
    whole = join(both, output(2, end="length", logprobs=True))
    first, second = whole.completions
    assert (first.index, first.text, first.token_ids.tolist(), first.finish_reason) == (0, "<1><2>", [1, 2], "length")
    assert [candidates[0].token_id for candidates in first.logprobs] == [1, 2]
    assert (second.index, second.token_ids.tolist(), second.finish_reason) == (1, [7], None)


def test_what_only_the_first_output_has_stays():
    whole = join(output(1, timings={"queue": 2.0}, cached_tokens=3, prompt_logprobs=[None]), output(2, end="stop"))
    assert (whole.timings, whole.cached_tokens, whole.prompt_logprobs) == ({"queue": 2.0}, 3, [None])
    assert whole.finished


def test_the_router_records_the_same_answer():
    """An answer continues on another replica from what the record holds."""
    outputs = [output(1), output(2), output(3, end="stop")]
    request = GenerateRequest("r", KeptPrompt.dense([5]), {"output_kind": CUMULATIVE})
    told = []
    for arriving in (outputs, [join(join(outputs[0], outputs[1]), outputs[2])]):
        record = AnswerRecord(request)
        last = [record.add(one) for one in arriving][-1]
        told.append((record.first_token_ids.tolist(), last.completions[0].text, record.finished))
    assert told[0] == told[1] == ([1, 2, 3], "<1><2><3>", True)
