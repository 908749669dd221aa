"""Spans: half-open ranges [start, end) of token positions in a prompt."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Float32Array, Int32Array, SelectRequest
from kv_transfer.options import SelectionOptions
from skim_common.errors import InvalidRequestError


def check_spans(spans: Iterable[Sequence[int]], prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless each span holds at least one token and lies inside the prompt."""
    for start, end in spans:
        if not 0 <= start < end <= prompt_tokens:
            raise InvalidRequestError(
                f"protected_spans: [{start}, {end}] is no range inside the prompt's {prompt_tokens} tokens"
            )


def check_rates(spans: Int32Array, rates: Float32Array, prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless the ranges [R, 2] lie in order and apart in the prompt, with rates in (0, 1]."""
    edges = np.concatenate([[0], spans.ravel(), [prompt_tokens]]).astype(np.int64)
    if (edges[1:] < edges[:-1]).any() or (spans[:, 0] == spans[:, 1]).any():
        raise InvalidRequestError(
            f"rate_spans must be sorted token ranges inside the prompt's {prompt_tokens} tokens that do not overlap"
        )
    if not ((rates > 0) & (rates <= 1)).all():
        raise InvalidRequestError("rates must be numbers > 0 and <= 1")


def check_units(units: Int32Array, indents: Int32Array, links: Int32Array, prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless the units [U] ascend from 0 inside the prompt, or there are none. There are as
    many indents, or none. The links [L, 2] are numbers of units.
    """
    if units.size and (units[0] != 0 or units[-1] >= prompt_tokens or (units[1:] <= units[:-1]).any()):
        raise InvalidRequestError(f"units must be ascending positions from 0 inside the {prompt_tokens} tokens")
    if indents.size and indents.size != units.size:
        raise InvalidRequestError(f"there must be one indent for each of {units.size} units, not {indents.size}")
    if links.size and not 0 <= links.min() <= links.max() < units.size:
        raise InvalidRequestError(f"links must be pairs of numbers of the {units.size} units")


def unit_starts(prompt_tokens: int, options: SelectionOptions, units: Int32Array) -> Int32Array:
    """The first token of each unit that has a score, int32 [U].

    units: as in SelectRequest. Without units of text they are chunks, also where single tokens are chosen.
    """
    if options.granularity == "text" and units.size:
        return units
    return np.arange(0, prompt_tokens, options.chunk_size, dtype=np.int32)


def regions_of(spans: Int32Array, rates: Float32Array) -> list[tuple[int, int, float]]:
    """The ranges [R, 2] with their rates [R], as (start, end, rate). The rates are the decimals that the user wrote."""
    return [(start, end, float(str(rate))) for (start, end), rate in zip(spans.tolist(), rates, strict=True)]


def segments_of(positions: Int32Array) -> Int32Array:
    """The runs of consecutive positions in `positions` [K], K > 0, as spans in the same order: int32 [S, 2]."""
    breaks = np.flatnonzero(positions[1:] != positions[:-1] + 1)
    starts, lasts = positions[np.r_[0, breaks + 1]], positions[np.r_[breaks, positions.size - 1]]
    return np.stack([starts, lasts + 1], 1)


def mask_of(spans: npt.ArrayLike, size: int) -> npt.NDArray[np.bool_]:
    """The positions inside any of `spans` [P, 2], as a mask of `size` positions."""
    edges = np.asarray(spans, np.int64).reshape(-1, 2).clip(0, size)
    begun, ended = (np.bincount(places, minlength=size + 1) for places in edges.T)
    return np.asarray(np.cumsum(begun - ended)[:size] > 0)


def always_kept(protected: npt.NDArray[np.bool_], protect_last: int) -> npt.NDArray[np.bool_]:
    """The tokens that every selection keeps, bool [M]: those of protected spans, and the last `protect_last` ones."""
    return protected | (np.arange(protected.size) >= protected.size - protect_last)


def droppable(request: SelectRequest) -> npt.NDArray[np.bool_]:
    """The tokens that a selection may drop, bool [M]."""
    return droppable_of(request.protected_spans, request.options.protect_last, int(request.token_ids.size))


def droppable_of(protected_spans: Int32Array, protect_last: int, size: int) -> npt.NDArray[np.bool_]:
    """`droppable` of a prompt of `size` tokens. protected_spans: int32 [P, 2]."""
    return ~always_kept(mask_of(protected_spans, size), protect_last)


def spans_of(mask: npt.NDArray[np.bool_]) -> Int32Array:
    """The runs of true values in `mask` [M], int32 [P, 2]: sorted, not empty, and never adjacent."""
    edges = np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], 1).astype(np.int32)
