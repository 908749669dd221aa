"""Decoding restores every encoded message; any other bytes raise WireError."""

import dataclasses
import struct
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer import codec
from kv_transfer.codec import MAX_MESSAGE_BYTES, VERSION, decode, encode, encode_error
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.layout import TextLayout
from kv_transfer.messages import (
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
)
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    MessageSizeError,
    ModelError,
    SkimError,
    WireError,
)
from skim_common.models.info import ModelInfo
from tests.unit.kv_transfer.message_strategies import messages, same

CLASSES = [
    KeptPrompt,
    Selection,
    SelectRequest,
    GenerateRequest,
    GenerateOutput,
    ModelInfo,
    SessionHandle,
    SelectionOptions,
    DraftRequest,
    DraftReply,
]
INT32, INT32_PAIRS, FLOAT32 = 1, 2, 4
SELECTION, GENERATE_REQUEST, KEPT_PROMPT = 2, 3, 6


def envelope(number: int, body: bytes, *, magic: bytes = b"SKIM", version: int = VERSION) -> bytes:
    return struct.pack("<4sBB", magic, version, number) + body


def extension(code: int, data: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, data)


def int32(*values: int) -> msgspec.msgpack.Ext:
    return extension(INT32, np.array(values, "<i4").tobytes())


@pytest.mark.parametrize(
    ("array", "kind", "data"),
    [
        (np.array([258], np.int32), INT32, b"\x02\x01\x00\x00"),
        (np.array([[1, 2]], np.int32), INT32_PAIRS, b"\x01\x00\x00\x00\x02\x00\x00\x00"),
        (np.array([1], np.float32), FLOAT32, b"\x00\x00\x80\x3f"),
    ],
)
def test_arrays_are_little_endian(array, kind, data):
    assert codec._encode_hook(array) == extension(kind, data)
    assert same(codec._checked_array(kind, memoryview(data)), array)


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros(3, np.int64), np.zeros((2, 3), np.int32), np.zeros((2, 2), np.float32)]
)
def test_other_arrays_have_no_form(array):
    with pytest.raises(TypeError, match="no form on the wire"):
        codec._encode_hook(array)


def kept_fields(**changes):
    fields = {"token_ids": int32(5, 6), "positions": int32(0, 3), "context_length": 4, "look_ahead_tokens": int32()}
    return {**fields, "session": None, **changes}


def kept_bytes(**changes) -> bytes:
    return envelope(KEPT_PROMPT, msgspec.msgpack.encode(kept_fields(**changes)))


def kept_prompt(**changes) -> KeptPrompt:
    fields = {"token_ids": [5, 6], "positions": [0, 3], "context_length": 4} | changes
    return KeptPrompt(
        np.array(fields["token_ids"], np.int32), np.array(fields["positions"], np.int32), fields["context_length"]
    )


@given(messages)
def test_every_message_comes_back(message):
    assert same(decode(encode(message), type(message)), message)


def test_the_handwritten_form_is_the_real_one():
    assert same(decode(kept_bytes(), KeptPrompt), kept_prompt())


@pytest.mark.parametrize("shape", [Any, tuple[Any, ...], tuple[int, int], TypeVar("_AnyShape")])
def test_arrays_are_known_by_their_elements_whatever_numpy_names_their_shape(shape):
    """numpy 2.5 names it `_AnyShape`, and its `NDArray` is an alias of its own."""
    ids, scores = (np.ndarray[shape, np.dtype[element]] for element in (np.int32, np.float32))
    array = np.arange(3, dtype=np.int32)
    assert codec._decode_hook(ids, array) is array
    with pytest.raises(ValueError, match="an array of float32 was expected, ndarray came"):
        codec._decode_hook(scores, array)


def test_decoded_arrays_own_their_memory():
    kept = decode(encode(kept_prompt()), KeptPrompt)
    kept.token_ids[0] = 9
    kept.positions[0] = 1


@pytest.mark.parametrize("size", [1, 131072])
def test_dense_prompts(size):
    kept = KeptPrompt.dense(np.random.default_rng(0).integers(0, 150_000, size))
    data = encode(kept)
    assert same(decode(data, KeptPrompt), kept)
    assert len(data) < 8 * size + 200


@pytest.mark.parametrize("cls", [InvalidRequestError, ModelError, EngineUnavailableError, WireError])
@pytest.mark.parametrize("expected", [Selection, GenerateOutput])
def test_errors_come_back_as_themselves(cls, expected):
    with pytest.raises(SkimError, match="the prompt is too long") as caught:
        decode(encode_error(cls("the prompt is too long")), expected)
    assert type(caught.value) is cls


@given(messages, st.sampled_from(CLASSES))
def test_another_message_than_expected(message, cls):
    if type(message) is cls:
        return
    with pytest.raises(WireError, match=f"{cls.__name__} was expected, {type(message).__name__} came"):
        decode(encode(message), cls)


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, 255])
def test_another_version(version):
    with pytest.raises(WireError, match=f"version {version}, this side reads version {VERSION}; run one release"):
        decode(envelope(KEPT_PROMPT, kept_bytes()[6:], version=version), KeptPrompt)


@pytest.mark.parametrize(
    "options", [SelectionOptions(), SelectionOptions(keep_rate=0.3), DecodeOptions(max_draft_tokens=8)]
)
def test_options_at_their_default_are_not_sent(options):
    """A reader refuses options that it does not know, so a new option stops no older reader until it is used."""
    request = SelectRequest("r", np.zeros(3, np.int32), SelectionOptions(), decode=DecodeOptions())
    field = "decode" if isinstance(options, DecodeOptions) else "options"
    sent = msgspec.msgpack.decode(encode(dataclasses.replace(request, **{field: options}))[6:])
    assert sent[field] == options.model_dump(exclude_defaults=True)
    assert len(sent[field].keys() - {"min_keep"}) <= 1  # whose default depends on the keep rate


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SKI",
        b"SKIM\x01",
        kept_bytes()[:6],
        kept_bytes() + b"\x00",
        envelope(KEPT_PROMPT, kept_bytes()[6:], magic=b"HTTP"),
        envelope(99, b"\xc0"),
        envelope(KEPT_PROMPT, b"\xc0"),
        envelope(KEPT_PROMPT, msgspec.msgpack.encode([])),
    ],
)
def test_bytes_that_are_no_message(data):
    with pytest.raises(WireError):
        decode(data, KeptPrompt)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": None},
        {"token_ids": [5, 6]},
        {"token_ids": b"\x05\x00\x00\x00\x06\x00\x00\x00"},
        {"token_ids": int32(5)},
        {"token_ids": int32(5, -6)},
        {"token_ids": extension(INT32, b"\x05\x00\x00")},
        {"token_ids": extension(INT32_PAIRS, np.array([5, 6], "<i4").tobytes())},
        {"token_ids": extension(FLOAT32, np.array([5, 6], "<f4").tobytes())},
        {"token_ids": extension(99, b"")},
        {"token_ids": int32(), "positions": int32()},
        {"positions": int32(3, 3)},
        {"positions": int32(4, 0)},
        {"positions": int32(0, 4)},
        {"positions": int32(0, -1)},
        {"positions": int32(0, 2**31 - 1)},
        {"context_length": "4"},
        {"context_length": 3},
        {"context_length": -1},
        {"context_length": 4.5},
        {"session": {"address": 1, "id": "x"}},
        {"session": {"address": "a:1"}},
    ],
)
def test_wrong_fields(changes):
    with pytest.raises(WireError, match="these bytes are no KeptPrompt"):
        decode(kept_bytes(**changes), KeptPrompt)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers(score):
    importance = np.array([0, 1, score, 0], np.float32)
    data = encode(Selection(kept_prompt(), 0.5, importance))
    with pytest.raises(WireError, match="not finite"):
        decode(data, Selection)


@pytest.mark.parametrize(
    "changes",
    [
        {"coverage": "all"},
        {"importance": int32(1, 2, 4, 3)},
        {"timings": {"queue": "long"}},
    ],
)
def test_wrong_selections(changes):
    fields = {"kept": kept_fields(), "coverage": 0.5, "importance": None, "timings": {}}
    assert same(decode(envelope(SELECTION, msgspec.msgpack.encode(fields)), Selection), Selection(kept_prompt(), 0.5))
    with pytest.raises(WireError, match="these bytes are no Selection"):
        decode(envelope(SELECTION, msgspec.msgpack.encode(fields | changes)), Selection)


@pytest.mark.parametrize("option", [{"keep_rate": 2}, {"keep_rat": 0.5}, {"look_ahead": "8"}])
def test_wrong_options(option):
    number = 8
    with pytest.raises(WireError, match=next(iter(option))):
        decode(envelope(number, msgspec.msgpack.encode(option)), SelectionOptions)


@pytest.mark.parametrize(
    "sampling",
    [
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x81\x81\x01\x01\x01",
        b"\x81\xa1a\xc7\x04\x01\xff\xff\xff\xff",
        b"\x81\xa1a\xc1",
        b"\x81\xa1\xff\x01",
    ],
    ids=["deep-lists", "deep-maps", "long-list", "long-map", "long-bytes", "long-ext", "map-key", "ids", "c1", "utf8"],
)
def test_hostile_msgpack(sampling):
    body = b"\x83\xaarequest_id\xa1r\xa6prompt" + msgspec.msgpack.encode(kept_fields()) + b"\xa8sampling" + sampling
    with pytest.raises(WireError, match="these bytes are no GenerateRequest"):
        decode(envelope(GENERATE_REQUEST, body), GenerateRequest)


def test_messages_over_the_limit():
    with pytest.raises(WireError, match="over the limit"):
        decode(bytes(MAX_MESSAGE_BYTES + 1), KeptPrompt)
    with pytest.raises(MessageSizeError, match="over the limit"):
        encode(SelectRequest("r", np.zeros(MAX_MESSAGE_BYTES // 4, np.int32)))


@pytest.mark.parametrize(
    "message",
    [
        "text",
        None,
        {"token_ids": []},
        SelectRequest("r", np.zeros(3, np.int64)),
        SelectRequest("r", np.zeros(3, np.int32), layout=TextLayout(np.zeros((1, 2), np.int64))),
        Selection(kept_prompt(), 0.5, np.zeros(4, np.float64)),
        GenerateRequest("r", kept_prompt(), {"seed": 2**64}),
        GenerateRequest("r", kept_prompt(), {"logits_processors": [object()]}),
        SelectRequest("\ud800", np.zeros(3, np.int32)),
    ],
)
def test_what_cannot_be_sent(message):
    with pytest.raises(WireError):
        encode(message)


def decode_or_wire_error(data: bytes, cls: type) -> None:
    try:
        message = decode(data, cls)
    except WireError:
        return
    assert type(message) is cls


@given(st.binary(max_size=200), st.sampled_from(CLASSES))
def test_random_bytes(data, cls):
    decode_or_wire_error(data, cls)
    decode_or_wire_error(envelope(codec._NUMBERS[cls], data), cls)


@given(messages, st.data())
def test_truncated_messages(message, data):
    whole = encode(message)
    with pytest.raises(WireError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))], type(message))


@given(messages, st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits(message, flips):
    data = bytearray(encode(message))
    for place, mask in flips:
        data[place % len(data)] ^= mask
    decode_or_wire_error(bytes(data), type(message))
