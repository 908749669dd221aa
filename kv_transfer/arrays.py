"""The arrays of the messages: token ids and positions are int32, scores float32.

A span is a half-open range [start, end) of token positions in a prompt.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from skim_common.errors import InvalidRequestError

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Span = tuple[int, int]


def no_numbers() -> Int32Array:
    return np.empty(0, np.int32)


def no_pairs() -> Int32Array:
    return np.empty((0, 2), np.int32)


def no_scores() -> Float32Array:
    return np.empty(0, np.float32)


def is_ascending(positions: Int32Array) -> bool:
    """Whether `positions` [K] increase strictly."""
    return bool((positions[1:] > positions[:-1]).all())


def common_prefix(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """The number of elements, or of rows, with which both begin."""
    size = min(len(a), len(b))
    differ = np.nonzero(a[:size] != b[:size])[0]
    return int(differ[0]) if differ.size else size


def check_spans(spans: Iterable[Sequence[int]], prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless each span holds at least one token and lies inside the prompt."""
    for start, end in spans:
        if not 0 <= start < end <= prompt_tokens:
            raise InvalidRequestError(
                f"protected_spans: [{start}, {end}] is no range inside the prompt's {prompt_tokens} tokens"
            )


def segments_of(positions: Int32Array) -> Int32Array:
    """The runs of consecutive positions in `positions` [K], K > 0, as spans: int32 [S, 2]."""
    breaks = np.flatnonzero(positions[1:] != positions[:-1] + 1)
    starts, lasts = positions[np.r_[0, breaks + 1]], positions[np.r_[breaks, positions.size - 1]]
    return np.stack([starts, lasts + 1], 1)


def mask_of(spans: npt.ArrayLike, size: int) -> npt.NDArray[np.bool_]:
    """The positions inside any of `spans` [P, 2], as a mask of `size` positions."""
    starts, ends = np.asarray(spans, np.int64).reshape(-1, 2).clip(0, size).T
    edges = np.concatenate([[0], starts, ends])
    order = np.argsort(edges, kind="stable")  # the fastest for spans in order
    open_spans = np.cumsum(np.repeat([0, 1, -1], [1, starts.size, ends.size])[order])
    return np.repeat(open_spans > 0, np.diff(edges[order], append=size))


def spans_of(mask: npt.NDArray[np.bool_]) -> Int32Array:
    """The runs of true values in `mask` [M], int32 [P, 2]: sorted, not empty, and never adjacent."""
    return np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2).astype(np.int32)
