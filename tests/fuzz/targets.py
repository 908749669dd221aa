"""What the fuzzers call: each function takes any bytes, and raises only if the code under test is wrong."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from kv_transfer import codec
from kv_transfer.codec import decode, encode
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, Selection, SelectRequest, SessionHandle
from kv_transfer.options import SelectionOptions
from router.http.body import parse_body
from router.options.request import DECODE, PREFILL, PrefillOptions, SpeculationOptions, read_decode
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import ModelInfo

CORPUS = Path(__file__).parent / "corpus"
# Segments travel in KeptPrompt and in all messages that hold one.
CLASSES: tuple[type, ...] = (
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
)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def message(data: bytes) -> None:
    """The first byte chooses the class; the rest is a whole message, and the body of one."""
    if not data:
        return
    cls = CLASSES[data[0] % len(CLASSES)]
    header = codec._HEADER.pack(codec._MAGIC, codec.VERSION, codec._NUMBERS[cls])
    for sent in (data[1:], header + data[1:]):
        try:
            found = decode(sent, cls)
        except SkimError:  # a WireError, or the error that the message is
            continue
        # What is read can be sent again.
        assert type(decode(encode(found), cls)) is cls


def options(data: bytes) -> None:
    """Both option headers, and both options of a body."""
    text = data.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    for option in (PREFILL, DECODE):
        for headers, field in (({option.header: text}, None), ({}, value)):
            try:
                if option is PREFILL:
                    PREFILL.resolve(PrefillOptions(), headers.get(PREFILL.header), field)
                else:
                    read_decode(SpeculationOptions(), headers, field)
            except InvalidRequestError:
                continue


def body(data: bytes) -> None:
    """What the middleware reads of a body, on each endpoint."""
    for path in PATHS:
        try:
            parse_body(data, path)
        except InvalidRequestError:
            continue


TARGETS: dict[str, Callable[[bytes], None]] = {"messages": message, "options": options, "bodies": body}


def corpus(name: str) -> Iterator[bytes]:
    """The committed examples of a target."""
    for file in sorted((CORPUS / name).iterdir()):
        yield file.read_bytes()
