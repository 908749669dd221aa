"""Each scan of what a client sends takes a time that is linear in its length.

32 times as long a text may take 100 times as long. A quadratic scan would take 1,000 times as long, which the control
shows. Processor time, the best of several.
"""

import re
import time
import tracemalloc

import numpy as np
import pytest

from kv_transfer.limits.grammar import check_grammar
from kv_transfer.spans import mask_of
from router.decision.guard import task_kind
from router.options.headers import whole_number
from router.options.request import PrefillOptions
from router.prompt.markers import Markers
from router.prompt.protected_spans import prompt_spans, task_text
from router.prompt.task.speech import Turn, find_speech, speech_of_turns
from router.prompt.text.units import text_units
from router.prompt.token_cache import KnownTokens
from router.vllm_front import body_errors
from skim_common.errors import InvalidRequestError
from skim_common.nesting import too_deep
from speculator_service.scoring.units import nested_ranks
from speculator_service.translation.alignment import readable
from tests.unit.kv_transfer.layouts import pairs
from tests.unit.router.prompt.test_control_tokens import byte_level

SHORT, LONG = 2048, 65536
MOST = 100
LEAST_S = 1e-4
"""A shorter time counts as this much: it is that of the call itself."""

PIECES = {
    "line ends": "\n",
    "spaces": " ",
    "spaces and line ends": "  \n",
    "colons": ":",
    "colons and spaces": ": ",
    "stops": ". ",
    "digits": "1",
    "numbered lines": "12: \n",
    "tabs and digits": "\t1",
    "quotes": '"',
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "opening brackets": "[",
    "parentheses": "(",
    "objects": '{"a":',
    "records": "},",
    "paths": "/a",
    "files": '\nFile "a',
    "identifiers": "a_",
    "one word": "a",
    "copy": "copy ",
    "please": "\nplease ",
    "list": "list all ",
    "wide stops": "\u3002",
    "fences": "```\n",
    "tags": "<a>\n",
    "closing tags": "</a>",
    "tags that close": "<a>\n</a>",
    "texts between tags": "<a>\ny</a>x\n",
    "headings": "# a\n",
    "questions": "a?\n\n",
    "items": "- a\n",
    "sections": "# a\n## b\nc\n",
    "speakers": "a: b\n",
    "rows": "a,b\n",
    "times": "12:00 a\n",
    "keys of JSON": '{"a":',
    "ends of JSON": '{"a":[1]},',
    "deeper lines": "if a:\n" + " " * 40,
    "headers": "<tr><th>a",
    "private": "\U000f0000\U000f0001",
    "control tokens": "<|im_end|",
}


def offsets_of(text):
    return np.stack([np.arange(0, len(text), 4), np.minimum(np.arange(4, len(text) + 4, 4), len(text))], 1)


def units(text):
    offsets = offsets_of(text)
    text_units(text, offsets, questions=pairs([(0, len(offsets))]), protected=[(0, len(offsets) // 2)])


def guard(text):
    task_kind(text)


def marked(text):
    marks = Markers(text)
    marks.locate(marks.around(1, text))
    marks.segments(marks.around(1, text))


def grammar(text):
    for name in ("regex", "json", "grammar", "structural_tag"):
        try:
            check_grammar({"structured_outputs": {name: text}})
        except InvalidRequestError:
            continue


SCANS = {
    "guard": guard,
    "question": lambda text: guard(task_text(pairs([(0, 1)]), None, text, [(0, len(text))])),
    "units": units,
    "speech": lambda text: find_speech(f"{text}\n\nWhat is it?", [(0, len(text) + 13)]),
    "speech of many turns": lambda text: speech_of_turns(
        text, [Turn([(at, at + 16)]) for at in range(0, len(text), 16)]
    ),
    "marks": marked,
    "depth": lambda text: too_deep(text.encode("utf-8", "surrogatepass") + b"[" * 200),
    "grammar": grammar,
    "special tokens": lambda text: KnownTokens(byte_level(), [(0, "<|im_end|>")])._digests(text, None),
    "translation": readable,
    "number": whole_number,
}


def seconds(call, rounds):
    took = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return min(took)


def growth(scan, make, sizes=(SHORT, LONG)):
    """How many times as long the scan of the long one takes."""
    short, long = map(make, sizes)
    base = max(LEAST_S, seconds(lambda: scan(short), 5))
    for attempt in range(5):  # a machine that is busy may take longer, and much longer once
        found = seconds(lambda: scan(long), 1) / base
        if found < MOST or (attempt and found >= 5 * MOST):
            break
    return found


@pytest.mark.parametrize("scan", SCANS)
def test_texts(scan):
    for name, piece in PIECES.items():
        assert growth(SCANS[scan], lambda size, piece=piece: (piece * size)[:size]) < MOST, name


def test_control():
    """The pattern that the guard had."""
    pattern = re.compile(r"(^|[.:!?\n])\s*(please )?(list|enumerate)\b")
    assert growth(pattern.search, "\n".__mul__, (128, 4096)) > MOST


def test_sentences_of_vllm(monkeypatch):
    from vllm.entrypoints.serve.exception_handling import error_response

    monkeypatch.setattr(error_response, "sanitize_message", body_errors.sanitize_message)
    assert growth(error_response.sanitize_message, "/a".__mul__, (64, 2048)) > MOST  # the control
    body_errors.bound_messages()
    assert growth(error_response.sanitize_message, "/a".__mul__) < MOST
    assert len(error_response.sanitize_message("x" * 5000)) == body_errors.MOST_MESSAGE_CHARS
    assert error_response.sanitize_message("a short one") == "a short one"


def many_spans(size):
    options = {"protected_spans": [[0, size]] * (size // 16)}
    return lambda: prompt_spans(size, PrefillOptions.model_construct(**options), None, None, None)


def many_ranges(size):
    ranges = [(at, at + 4, "always") for at in range(0, size, 16)]
    options = PrefillOptions.model_construct(keep_ranges=ranges)
    return lambda: prompt_spans(size, options, None, "a" * size, offsets_of("a" * 4 * size) // 4)


@pytest.mark.parametrize("work", [many_spans, many_ranges])
def test_many_parts(work):
    assert growth(lambda call: call(), work) < MOST


def test_deeply_nested_lines_take_no_memory_of_their_own():
    """Half of the text are lines that are indented more and more, the rest is as far in as the last."""
    deep = int(LONG**0.5)
    indents = np.r_[np.arange(deep), np.full(LONG // 8 - deep, deep)].astype(np.int32)
    every = np.ones(indents.size)
    tracemalloc.start()
    try:
        nested_ranks(every, indents, 8 * np.arange(1, indents.size + 1), every > 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * LONG


def test_a_mask_is_that_of_each_span():
    spans = [(0, 3), (2, 5), (2, 5), (9, 10)]
    assert np.flatnonzero(mask_of(spans, 10)).tolist() == [0, 1, 2, 3, 4, 9]
    assert not mask_of([], 3).any()
