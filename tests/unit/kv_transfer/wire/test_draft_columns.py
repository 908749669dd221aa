"""An inconsistent draft message raises WireError, both when it is encoded and when it is decoded."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow
from kv_transfer.wire.codec import decode, encode
from skim_common.errors import WireError
from tests.unit.kv_transfer.message_strategies import same

HEADER_BYTES = 6


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def request() -> DraftRequest:
    rows = [DraftRow("a", 3, int32(7, 8), 4, 0.7, 2), DraftRow("b", 0, int32(), 0)]
    return DraftRequest(5, rows, closed=["c"])


def reply() -> DraftReply:
    q = (int32(1, 2, 2, 4), float32(0.25, 0.75, 1, 0))
    narrow = Draft("c", 0, int32(9), int32(9), float32(1))
    return DraftReply(5, [Draft("a", 5, int32(1, 2), *q), Draft("b", 0, int32(6)), narrow])


def changed(message: DraftRequest | DraftReply, **fields) -> bytes:
    """The message's bytes with some columns replaced."""
    data = encode(message)
    columns = msgspec.msgpack.decode(data[HEADER_BYTES:])
    assert columns.keys() >= fields.keys()
    for name, value in fields.items():
        columns[name] = value.tobytes() if isinstance(value, np.ndarray) else value
    return data[:HEADER_BYTES] + msgspec.msgpack.encode(columns)


def test_rows_of_different_widths_come_back():
    assert same(decode(encode(reply()), DraftReply), reply())
    assert same(decode(changed(reply()), DraftReply), reply())
    assert same(decode(changed(request()), DraftRequest), request())


def test_one_hot_rows_before_and_after_others_come_back():
    one_hot, wide, narrow = Draft("0", 0, int32(3, 4)), *reply().drafts[::2]
    message = DraftReply(5, [one_hot, wide, narrow, replace(one_hot, session="1")])
    assert same(decode(encode(message), DraftReply), message)


def test_decoded_rows_do_not_share_memory():
    first, second = decode(encode(request()), DraftRequest).rows
    first.tokens[:] = 1
    assert not second.tokens.size
    again = decode(encode(reply()), DraftReply)
    again.drafts[0].q_ids[:] = 0
    assert same(again.drafts[2], reply().drafts[2])


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": -1},
        {"sequence": "5"},
        {"sessions": ["a"]},
        {"sessions": ["a", "a"]},
        {"sessions": [1, 2]},
        {"positions": [3, -1]},
        {"positions": [3, 2**31]},
        {"positions": [3]},
        {"counts": [1, 0]},
        {"counts": [3, 0]},
        {"counts": [3, -1]},
        {"counts": [2, 2**31 - 1]},
        {"max_drafts": [4, -1]},
        {"temperatures": [0.7, -0.1]},
        {"temperatures": [0.7, float("nan")]},
        {"temperatures": [0.7, float("inf")]},
        {"temperatures": [0.7]},
        {"top_ms": [2, -1]},
        {"tokens": int32(7)},
        {"tokens": int32(7, -8)},
        {"tokens": float32(7, -8)},
        {"tokens": bytes(7)},
        {"tokens": [7, 8]},
        {"closed": "c"},
        {"closed": None},
    ],
)
def test_requests_that_lie(fields):
    with pytest.raises(WireError, match="these bytes are no DraftRequest"):
        decode(changed(request(), **fields), DraftRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": 2**64 - 1},
        {"sessions": ["a", "b", "a"]},
        {"sessions": ["a", "b"]},
        {"positions": [5, 0, 0, 0]},
        {"positions": [5, 0, -1]},
        {"counts": [2, 1, 2]},
        {"counts": [1, 2, 1]},
        {"widths": [3, 0, 1]},
        {"widths": [0, 0, 1]},
        {"widths": [2, 0, 2**31 - 1]},
        {"widths": [0, 0, 0]},
        {"tokens": int32(1, 2, 6, -9)},
        {"tokens": int32(1, 2, 6)},
        {"q_ids": int32(1, 2, 2, 4)},
        {"q_ids": int32()},
        {"q_ids": int32(1, 2, 2, -4, 9)},
        {"q_probs": float32(0.25, 0.75, 1, 0)},
        {"q_probs": int32(0, 1, 1, 0, 1)},
        {"q_probs": bytes(19)},
    ],
)
def test_replies_that_lie(fields):
    with pytest.raises(WireError, match="these bytes are no DraftReply"):
        decode(changed(reply(), **fields), DraftReply)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"q_probs": float32(0.25, 0.5, 1, 0, 1)}, "do not sum to 1"),
        ({"q_probs": float32(0.25, 0.75, 1, 0, 0)}, "do not sum to 1"),
        ({"q_probs": float32(0.25, 0.75, 2, -1, 1)}, "below 0"),
        ({"q_probs": float32(0.25, float("nan"), 1, 0, 1)}, "do not sum to 1"),
        ({"q_probs": float32(float("inf"), 0.75, 1, 0, 1)}, "do not sum to 1"),
        ({"q_probs": float32(0.25, 0.75, float("inf"), float("-inf"), 1)}, "below 0"),
        ({"q_ids": int32(1, 1, 2, 4, 9)}, "twice"),
        ({"tokens": int32(3, 2, 6, 9)}, "probability is 0"),
        ({"tokens": int32(1, 4, 6, 9)}, "probability is 0"),
        ({"tokens": int32(1, 2, 6, 8)}, "probability is 0"),
    ],
)
def test_distributions_that_are_none(fields, fault):
    with pytest.raises(WireError, match=fault):
        decode(changed(reply(), **fields), DraftReply)


@pytest.mark.parametrize(
    "message",
    [
        DraftRequest(0, [DraftRow("a", 0, np.zeros(2, np.int64), 4)]),
        DraftRequest(0, [DraftRow("a", 0, np.zeros((2, 2), np.int32), 4)]),
        DraftRequest(0, [DraftRow("a", 0, [1, 2], 4)]),  # type: ignore[arg-type]
        DraftReply(0, [Draft("a", 0, int32(1, 2), int32(1, 2, 3), float32(1, 1, 1))]),
        DraftReply(0, [Draft("a", 0, int32(1), int32(1), float32())]),
        DraftReply(0, [Draft("a", 0, int32(), int32(1), float32(1))]),
        DraftReply(0, [Draft("a", 0, int32(1), int32(1), np.ones(1))]),
    ],
)
def test_what_cannot_be_sent(message):
    with pytest.raises(WireError):
        encode(message)
