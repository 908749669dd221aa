"""The memory that the body of `POST /v1/select` takes before its prompts are made, one after the other."""

import json
import tracemalloc

import pytest

from kv_transfer.options import DecodeOptions
from router.dispatch.request import Request
from router.options.request import PrefillOptions
from router.vllm_front.select_endpoint import SelectBody

PARTS = [{"type": "text", "text": "x y", "keep": 0.5}] * 4000


@pytest.mark.parametrize(
    "fields",
    [
        {"texts": ["x y"] * 1024, "question": "a" * 15_000},
        {"text": "x y " * 20_000, "question": "a"},
        {"messages": [{"role": "user", "content": PARTS}]},
    ],
)
def test_a_body_takes_memory_in_proportion_to_its_length(fields):
    data = json.dumps(fields).encode()
    body = SelectBody.model_validate_json(data)
    tracemalloc.start()
    try:
        _, chats = body.request(Request(PrefillOptions(), DecodeOptions()), 16 * 2**20)
        for _ in chats:
            pass
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()
