"""Units: what is kept or dropped as a whole. Lines and sentences of the text, chunks, or single tokens."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Float32Array, Int32Array
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import unit_starts

NO_UNITS: Int32Array = np.empty(0, np.int32)
"""The `units` of a prompt whose text is not known."""

Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The units of a prompt. starts: int64 [U], their first tokens, from 0. lengths: int64 [U], their tokens.

    sizes: int64 [U], what each counts in a budget of tokens: its length or, of chunks, the length of a whole one.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, prompt_tokens: int, options: SelectionOptions, units: Int32Array) -> "Units":
        """units: as in SelectRequest; without them, units of text are chunks."""
        if options.granularity == "token":
            starts, size = np.arange(prompt_tokens), 1
        else:
            starts, size = unit_starts(prompt_tokens, options, units).astype(np.int64), options.chunk_size
        lengths = np.diff(starts, append=prompt_tokens)
        by_text = options.granularity == "text" and units.size > 0
        return cls(starts, lengths, lengths if by_text else np.full_like(lengths, size))

    def means(self, importance: Float32Array) -> npt.NDArray[np.float64]:
        """The mean importance of each unit: float64 [U]. importance: float32 [M]."""
        return unit_means(importance, self.starts)

    def having(self, tokens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The units that have one of the marked tokens, bool [U]. tokens: bool [M]."""
        return np.logical_or.reduceat(tokens, self.starts)

    def each_token(self, values: npt.NDArray[Element]) -> npt.NDArray[Element]:
        """The value [U] of its unit for each token, [M]."""
        return np.repeat(values, self.lengths)


def unit_means(importance: Float32Array, starts: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """The mean importance of each unit: float64 [U]. importance: float32 [M], M > 0. starts: int [U], from 0."""
    sums = np.add.reduceat(importance.astype(np.float64), starts)
    return sums / np.diff(starts, append=importance.size)
