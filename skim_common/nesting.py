"""How deeply a JSON text is nested, found before anything parses it, without recursion and in linear time."""

import json

import numpy as np

MAX_DEPTH = 100
"""Levels of lists and objects that a request may have. Tool schemas have about 20. What reads a request recurses:
Python's stack ends at a few hundred levels."""

_BLOCK = 2**20
_QUOTE, _COLON = ord('"'), ord(":")
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))


def too_deep(text: bytes, most: int = MAX_DEPTH) -> str | None:
    """None if the JSON text has at most so many levels; else the name in the outermost object under which it has more,
    "" without a name. Also of a text that is malformed."""
    if text.count(b"[") + text.count(b"{") <= most:
        return None
    if b"\0" in text:  # UTF-16 or UTF-32
        text = text.decode(json.detect_encoding(text), "replace").encode()
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if _excess(text.translate(None, _OTHERS), most) is None:
        return None
    colon = _excess(text, most) or 0
    end = text.rfind(b'"', 0, colon)
    return text[text.rfind(b'"', 0, max(0, end)) + 1 : max(0, end)].decode("utf-8", "replace")


def _excess(text: bytes, most: int) -> int | None:
    """The place of the last colon in the outermost object before the text has more levels than `most`, 0 without a
    colon; None if it never has. text: without escapes."""
    depth, inside, colon = 0, 0, 0
    for begin in range(0, len(text), _BLOCK):
        codes = np.frombuffer(text, np.uint8, min(_BLOCK, len(text) - begin), begin)
        is_text = (np.cumsum(codes == _QUOTE, dtype=np.uint8) + np.uint8(inside)) & 1
        depths = np.cumsum(_STEPS[codes] * (1 - is_text), dtype=np.int32) + depth
        end = int(np.argmax(depths > most)) if depths.max() > most else codes.size
        colons = np.flatnonzero((codes[:end] == _COLON) & (depths[:end] == 1) & (is_text[:end] == 0))
        colon = begin + int(colons[-1]) if colons.size else colon
        if end < codes.size:
            return colon
        depth, inside = int(depths[-1]), int(is_text[-1])
    return None
