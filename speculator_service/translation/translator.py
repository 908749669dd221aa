"""Translates a prompt of a target into the tokens of a speculator with another tokenizer, through its text."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array
from speculator_service.translation.alignment import Spans, carried_importance, readable, spans_of_bytes, text_of
from speculator_service.translation.token_text import TokenText

_TURN = b"\n"


@dataclass(frozen=True, slots=True, eq=False)
class TranslatedPrompt:
    """A prompt of the target in the speculator's tokens.

    ids: int32 [S]. spans, target_spans: the characters of each of the speculator's tokens [S, 2] and of the target's
    [M, 2]. characters: length of the text.
    """

    ids: Int32Array
    spans: Spans
    target_spans: Spans
    characters: int

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
    """Reads prompts of one target for one speculator.

    A special token of the target becomes the speculator's special token of the same text, if it has one, else a line
    break: its text would be ordinary words to the speculator. The words of the chat template between them stay.
    """

    def __init__(self, speculator: TokenText, target: TokenText) -> None:
        self.speculator = speculator
        shared = speculator.special.keys() & target.special.keys()
        unshared = {number for text, number in target.special.items() if text not in shared}
        self._read = [_TURN if number in unshared else piece for number, piece in enumerate(target.pieces)]

    def read(self, ids: Int32Array, *, start: bool = True) -> TranslatedPrompt:
        """A prompt of the target's tokens [M], of any ids of its vocabulary. start: as in `TokenText.read`."""
        pieces = [self._read[token] for token in ids.tolist()]
        data = b"".join(pieces)
        text = text_of(data)
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        own, spans = self.speculator.read(readable(text), start=start)
        return TranslatedPrompt(own, spans, spans_of_bytes(text, sizes), len(text))
