"""Encodes a text: its tokens, and the characters that each token stands for.

A tokenizer is slower when it keeps count of characters. A plain byte-level BPE tokenizer only cuts an ASCII text into
tokens, in order. Then the places of the tokens follow from their lengths.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import models, normalizers

Offsets = npt.NDArray[np.int32]
"""Each token's half-open character range, [M, 2]."""


class Tokens(NamedTuple):
    """A tokenized text. ids: int32 [M]. offsets: their character ranges in the text."""

    ids: npt.NDArray[np.int32]
    offsets: Offsets


class TextEncoder:
    """One tokenizer. Threads may share it.

    lengths: characters of each token in an ASCII text, int32 [vocabulary]; None if the tokenizer has to give offsets.
    """

    def __init__(self, backend: Any) -> None:
        """backend: a tokenizers.Tokenizer that neither truncates nor pads, and is not changed later."""
        self._backend = backend
        self.lengths = _lengths(backend) if _only_cuts(backend) else None
        if not all(map(self._agrees, _samples(backend))):
            self.lengths = None

    def encode(self, text: str) -> Tokens:
        """The tokens of `text`, without those that a tokenizer adds around it."""
        tokens = self._by_lengths(text)
        return self._by_tokenizer(text) if tokens is None else tokens

    def _by_lengths(self, text: str) -> Tokens | None:
        """None if the lengths of the tokens do not tell their places, or do not add up to that of `text`."""
        if self.lengths is None or not text.isascii():
            return None
        # Of the methods of a tokenizer, only those for batches let other threads run meanwhile.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        lengths = self.lengths[ids]
        offsets = np.empty((ids.size, 2), np.int32)
        np.cumsum(lengths, out=offsets[:, 1])
        np.subtract(offsets[:, 1], lengths, out=offsets[:, 0])
        return Tokens(ids, offsets) if offsets[-1:, 1].sum() == len(text) else None

    def _by_tokenizer(self, text: str) -> Tokens:
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        # From a flat sequence, numpy makes the array faster than from pairs.
        offsets = np.fromiter(itertools.chain.from_iterable(encoding.offsets), np.int32, 2 * ids.size)
        return Tokens(ids, offsets.reshape(-1, 2))

    def _agrees(self, text: str) -> bool:
        found, wanted = self._by_lengths(text), self._by_tokenizer(text)
        return found is not None and all(map(np.array_equal, found, wanted))


def _lengths(backend: Any) -> npt.NDArray[np.int32]:
    """A byte-level token has one character for each byte, an added token is looked for as it is."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocabulary.values(), default=-1) + 1, np.int32)
    lengths[list(vocabulary.values())] = list(map(len, vocabulary))
    return lengths


def _only_cuts(backend: Any) -> bool:
    """Whether no part can make an ASCII text longer. That a part drops characters shows in the sum of the lengths."""
    model, normalizer, pre_tokenizer = backend.model, backend.normalizer, backend.pre_tokenizer
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    # NFC leaves ASCII as it is.
    if pre_tokenizer is None or not (normalizer is None or isinstance(normalizer, normalizers.NFC)):
        return False
    state = json.loads(pre_tokenizer.__getstate__())
    parts = state.get("pretokenizers", [state])
    if not all(part["type"] in ("Split", "Digits", "ByteLevel") for part in parts):
        return False
    return [part["add_prefix_space"] for part in parts if part["type"] == "ByteLevel"] == [False]


def _samples(backend: Any) -> Iterator[str]:
    """ASCII texts that show what else a tokenizer may do, such as to leave spaces out of its offsets."""
    prose = "It's the 1st of 2,048 texts (or 12345678); isn't it? \"Yes,\" she said... "
    code = "\n\ndef f(x, *y):\n    if x != y[0]:\n\t\treturn {'a': 1.5e-3}  # no\r\n\r\n<|a|> </s> [b] ##c __d__ @@"
    every = "".join(map(chr, range(128)))
    yield from ("", " ", "a", "\n", prose, code, every, every[::-1], f"   {prose}{code}\n  {prose}    \n\n ")
    added = [token.content for token in backend.get_added_tokens_decoder().values() if token.content.isascii()]
    for around in ("", " ", "\n", "  \r\n", "a", "1"):
        yield around.join(["", *added, ""])
    yield "".join(f"{token}one {token} two\n{token}\n\n" for token in added)
