"""Draft messages that lie are refused: rows when they are decoded, replies when they are compared with the rows."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv_transfer.codec import decode, encode
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow, check_answers
from skim_common.errors import WireError
from tests.unit.kv_transfer.message_strategies import same

HEADER_BYTES = 6


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


REQUEST = DraftRequest(
    [
        DraftRow("a", 3, int32(7, 8), 4, 0.7, 2),
        DraftRow("b", 0, int32(), 1),
        DraftRow("c", 0, int32(), 1, 1.0, 1),
        DraftRow("told", 3, int32(1, 2), 0),
    ],
    closed=["d"],
)
A = Drafted(int32(1, 2), int32(1, 2, 2, 4), float32(0.25, 0.75, 1, 0))
REPLY = DraftReply({"a": A, "b": Drafted(int32(6)), "c": Drafted(int32(9), int32(9), float32(1))})


def changed(message: DraftRequest | DraftReply, **fields) -> bytes:
    """The message's bytes with some fields of its first row, or of the drafts for it, replaced."""
    data = encode(message)
    body = msgspec.msgpack.decode(data[HEADER_BYTES:])
    row = body["rows"][0] if "rows" in body else body["drafts"]["a"]
    assert row.keys() >= fields.keys()
    row.update(fields)
    return data[:HEADER_BYTES] + msgspec.msgpack.encode(body, enc_hook=encoded)


def encoded(value):
    return msgspec.msgpack.Ext(1 if value.dtype == np.int32 else 4, value.tobytes())


def test_rows_of_different_widths_come_back():
    for message in (REQUEST, REPLY):
        assert same(decode(encode(message), type(message)), message)
        assert same(decode(changed(message), type(message)), message)


def test_decoded_rows_do_not_share_memory():
    drafts = decode(encode(REPLY), DraftReply).drafts
    drafts["a"].q_ids[:] = 0
    assert drafts["c"].q_ids.tolist() == [9]


def test_q_has_a_row_for_each_draft():
    assert [part.tolist() for part in A.q] == [[[1, 2], [2, 4]], [[0.25, 0.75], [1, 0]]]
    assert [part.shape for part in Drafted(int32(6, 7)).q] == [(2, 0), (2, 0)]


@pytest.mark.parametrize(
    "fields",
    [
        {"session": 1},
        {"position": -1},
        {"position": 2**31},
        {"max_drafts": -1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_m": -1},
        {"tokens": float32(7, -8)},
        {"tokens": msgspec.msgpack.Ext(1, bytes(7))},
        {"tokens": msgspec.msgpack.Ext(2, bytes(8))},
        {"tokens": [7, 8]},
    ],
)
def test_requests_that_lie(fields):
    with pytest.raises(WireError, match="these bytes are no DraftRequest"):
        decode(changed(REQUEST, **fields), DraftRequest)


@pytest.mark.parametrize(
    "reply",
    [DraftReply(), REPLY, replace(REPLY, drafts={"a": Drafted(A.tokens)})],
)
def test_answers(reply):
    check_answers(decode(encode(reply), DraftReply), REQUEST)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"tokens": int32(1, 2, 3, 4, 5)}, "more drafts"),
        ({"tokens": int32(1)}, "more drafts, or more of q"),
        ({"tokens": int32()}, "more drafts, or more of q"),
        ({"tokens": int32(1, 2, 6)}, "do not fit 3 drafts"),
        ({"tokens": msgspec.msgpack.Ext(2, bytes(8))}, "these bytes are no DraftReply"),
        ({"q_ids": int32(1, 2, 2)}, "do not fit 2 drafts"),
        ({"q_ids": int32()}, "0 ids and 4 probabilities"),
        ({"q_probs": float32(0.25, 0.75, 1)}, "4 ids and 3 probabilities"),
        ({"q_probs": int32(0, 1, 1, 0)}, "these bytes are no DraftReply"),
        ({"q_probs": msgspec.msgpack.Ext(4, bytes(15))}, "these bytes are no DraftReply"),
        ({"q_probs": float32(0.25, 0.5, 1, 0)}, "do not sum to 1"),
        ({"q_probs": float32(0.25, 0.75, 2, -1)}, "below 0"),
        ({"q_probs": float32(0.25, float("nan"), 1, 0)}, "do not sum to 1"),
        ({"q_probs": float32(float("inf"), 0.75, 1, 0)}, "do not sum to 1"),
        ({"q_probs": float32(0.25, 0.75, float("inf"), float("-inf"))}, "below 0"),
        ({"q_ids": int32(1, 1, 2, 4)}, "twice"),
        ({"tokens": int32(3, 2)}, "probability is 0"),
        ({"tokens": int32(1, 4)}, "probability is 0"),
    ],
)
def test_replies_that_lie(fields, fault):
    with pytest.raises(WireError, match=fault):
        check_answers(decode(changed(REPLY, **fields), DraftReply), REQUEST)


@pytest.mark.parametrize(
    ("session", "fault"), [("e", "none were asked"), ("told", "more drafts"), ("b", "more drafts")]
)
def test_drafts_for_another_row(session, fault):
    with pytest.raises(WireError, match=fault):
        check_answers(DraftReply({session: A}), REQUEST)


some_ids = arrays(np.int32, st.integers(0, 6))
some_probs = arrays(np.float32, st.integers(0, 6), elements=st.floats(width=32))


@given(some_ids, some_ids, some_probs, st.integers(0, 3), st.integers(0, 4))
def test_whatever_a_drafter_says_is_refused_or_has_a_distribution(tokens, q_ids, q_probs, top_m, most):
    try:
        reply = decode(encode(DraftReply({"s": Drafted(tokens, q_ids, q_probs)})), DraftReply)
        check_answers(reply, DraftRequest([DraftRow("s", 4, int32(7, 8), most, 1.0, top_m)]))
    except WireError:
        return
    ids, probs = reply.drafts["s"].q
    assert ids.shape == probs.shape
    assert len(ids) == tokens.size <= most
    assert not ids.size or np.allclose(probs.sum(axis=1), 1, atol=2e-3)


@pytest.mark.parametrize("tokens", [np.zeros(2, np.int64), np.zeros((2, 3), np.int32), object()])
def test_what_cannot_be_sent(tokens):
    with pytest.raises(WireError):
        encode(DraftRequest([DraftRow("a", 0, tokens, 4)]))
