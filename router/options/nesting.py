"""How deeply a JSON text is nested, found before anything parses it, without recursion and in linear time."""

import json

import numpy as np

MAX_DEPTH = 100
"""Levels of lists and objects that a request may have. Tool schemas have about 20. What reads a request recurses:
Python's stack ends at a few hundred levels."""

_BLOCK = 2**20
_QUOTE = ord('"')
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))


def too_deep(text: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether the JSON text, which may be malformed, has more than so many levels."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    if b"\0" in text:  # UTF-16 or UTF-32
        text = text.decode(json.detect_encoding(text), "replace").encode()
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _OTHERS)
    depth = quotes = 0
    for begin in range(0, len(text), _BLOCK):
        codes = np.frombuffer(text, np.uint8, min(_BLOCK, len(text) - begin), begin)
        inside = (np.cumsum(codes == _QUOTE, dtype=np.uint8) + np.uint8(quotes)) & 1
        depths = np.cumsum(_STEPS[codes] * (1 - inside), dtype=np.int32) + depth
        if depths.max() > most:
            return True
        depth, quotes = int(depths[-1]), int(inside[-1])
    return False
