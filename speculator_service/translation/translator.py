"""Translates token ids between a speculator and a target with two tokenizers, through the text that they stand for.

Drafts from a drafter with another vocabulary, by text: "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies" (arXiv 2502.05202).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, no_numbers
from speculator_service.translation.alignment import Spans, carried_importance, readable, spans_of_bytes, text_of
from speculator_service.translation.token_text import TokenText

CONTEXT_BYTES = 64
"""Text before a boundary that a tokenizer is shown, so that it splits the text after it as in one piece."""

_TURN = b"\n"


@dataclass(frozen=True, slots=True, eq=False)
class TranslatedPrompt:
    """A prompt of the target in the speculator's tokens.

    ids: int32 [S]. spans, target_spans: the characters of each of the speculator's tokens [S, 2] and of the target's
    [M, 2]. characters: length of the text. end: the text's last bytes.
    """

    ids: Int32Array
    spans: Spans
    target_spans: Spans
    characters: int
    end: bytes

    def importance(self, importance: npt.ArrayLike) -> Float32Array:
        """The importance of the target's tokens [M], from that of the speculator's tokens [S]."""
        carried = carried_importance(importance, self.spans, self.target_spans, self.characters)
        return carried.astype(np.float32)

    def own_tokens(self, span: tuple[int, int]) -> tuple[int, int] | None:
        """The speculator's tokens that share a character with the target's tokens `span`, half-open; None for none."""
        first, last = self.target_spans[span[0], 0], self.target_spans[span[1] - 1, 1]
        touched = np.flatnonzero((self.spans[:, 0] < last) & (self.spans[:, 1] > first))
        return (int(touched[0]), int(touched[-1]) + 1) if touched.size else None


class Translator:
    """Both directions of one pair.

    A special token of the target becomes the speculator's special token of the same text, if it has one, else a line
    break: its text would be ordinary words to the speculator. The words of the chat template between them stay.
    """

    def __init__(self, speculator: TokenText, target: TokenText) -> None:
        self.speculator, self.target = speculator, target
        shared = speculator.special.keys() & target.special.keys()
        unshared = {number for text, number in target.special.items() if text not in shared}
        self._read = [_TURN if number in unshared else piece for number, piece in enumerate(target.pieces)]
        self._ends = {number for text, number in speculator.special.items() if text not in shared}

    def text(self, ids: npt.ArrayLike) -> bytes:
        """The text of the target's token ids as the speculator reads it. Ids that the tokenizer lacks have no text."""
        known = len(self._read)
        return b"".join([self._read[token] for token in np.asarray(ids).tolist() if token < known])

    def read(self, ids: Int32Array, *, start: bool = True) -> TranslatedPrompt:
        """A prompt of the target's tokens [M], of any ids of its vocabulary. start: as in `TokenText.read`."""
        pieces = [self._read[token] for token in ids.tolist()]
        data = b"".join(pieces)
        text = text_of(data)
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        own, spans = self.speculator.read(readable(text), start=start)
        return TranslatedPrompt(own, spans, spans_of_bytes(text, sizes), len(text), last_text(data))

    def answer(self, before: bytes, text: bytes) -> list[int]:
        """The speculator's ids of the answer's `text` after `before`; `text` is valid UTF-8."""
        ids = self.speculator.going_on(last_text(before), text)
        return self.speculator.read(text.decode(), start=False)[0].tolist() if ids is None else ids

    def drafts(self, before: bytes, partial: bytes, drafted: Int32Array) -> Int32Array:
        """The speculator's drafts in the target's tokens, int32.

        before: the text before the drafts. partial: its last bytes, where they begin a character that the answer has
        not completed; the speculator was not shown them, so its drafts must begin with them. Drafts end at the first
        special token that the target does not have, at an id that the tokenizer lacks (models can have more than
        their tokenizers), and before a character that is not complete.
        """
        text = b""
        for token in drafted.tolist():
            if token in self._ends or token >= len(self.speculator.pieces):
                break
            text += self.speculator.pieces[token]
        if not text.startswith(partial):
            return no_numbers()
        text = text[: len(whole(text))]
        ids = self.target.going_on(last_text(before), text[len(partial) :]) if len(text) > len(partial) else None
        return np.array(ids or [], np.int32)


def whole(data: bytes) -> bytes:
    """`data` up to its last complete character, or up to its first byte that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data


def last_text(data: bytes) -> bytes:
    """The last CONTEXT_BYTES of `data`, from the start of a character."""
    begin = max(0, len(data) - CONTEXT_BYTES)
    while begin < len(data) and data[begin] & 0xC0 == 0x80:
        begin += 1
    return data[begin:]
