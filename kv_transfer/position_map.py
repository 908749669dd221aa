"""The original position of each slot of a compact KV cache.

An engine that prefills K of M tokens stores them in slots 0..K-1, but applies the rotary embedding of their original
positions. A model runner needs only the offsets: `offset[i] = kept[i] - i` inside the prompt, and the constant `M - K`
after it, also for decoding, for the verification of drafts, and after preemption (Speculative Prefill, arXiv
2502.02789, section 3.3).
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt

Int64Array = npt.NDArray[np.int64]

KEPT_POSITIONS = "skim_kept_positions"
"""Key in `SamplingParams.extra_args`; its value is the kept positions and the context length, as int32 bytes."""


class PositionMap:
    """Offsets from slot to original position, for one kept prompt. kept: int32 [K], in any order: the offset of a slot
    is below 0 where a token stands after tokens of later text.
    """

    def __init__(self, kept: Int32Array, context_length: int) -> None:
        self.prompt_offsets: Int32Array = kept - np.arange(kept.size, dtype=np.int32)
        self.decode_offset = context_length - kept.size

    def fill(self, out: Int64Array, start: int) -> None:
        """Write the offsets of slots start .. start + len(out) - 1 into `out`."""
        in_prompt = self.prompt_offsets[start : start + out.size]
        out[: in_prompt.size] = in_prompt
        out[in_prompt.size :] = self.decode_offset

    def block_key(self, start: int, end: int) -> bytes | None:
        """The part of the block hash of slots [start, end) that distinguishes other KV of the same tokens: the offsets
        as little-endian int32; None if all are zero, so that plain requests can share the block.
        """
        key = self.prompt_offsets[start:end].astype("<i4", copy=False).tobytes()
        decoded = end - max(start, self.prompt_offsets.size)
        if decoded > 0:
            key += struct.pack("<i", self.decode_offset) * decoded
        return key if key.strip(b"\0") else None


def position_map(extra_args: Mapping[str, Any] | None) -> PositionMap | None:
    """The map of a request with these `SamplingParams.extra_args`; None for a plain request."""
    encoded = extra_args.get(KEPT_POSITIONS) if extra_args else None
    return None if encoded is None else _decoded_map(encoded)


def position_args(prompt: KeptPrompt) -> dict[str, Any]:
    """The part of `SamplingParams.extra_args` from which `position_map` reads a prompt."""
    if prompt.is_dense:
        return {}
    return {KEPT_POSITIONS: np.append(prompt.positions, np.int32(prompt.context_length)).tobytes()}


def batch_offsets(
    maps: Sequence[PositionMap | None], starts: npt.NDArray[Any], computed: npt.NDArray[Any]
) -> Int64Array | None:
    """The offsets of all tokens of a step, int64 [tokens]; None if all of its requests are plain.

    maps: one per request. starts: where the tokens of each request begin, then the number of all tokens.
    computed: the slot of each request's first token.
    """
    if not any(maps):
        return None
    offsets = np.zeros(int(starts[len(maps)]), np.int64)
    for row, restored in enumerate(maps):
        if restored is not None:
            restored.fill(offsets[starts[row] : starts[row + 1]], int(computed[row]))
    return offsets


# Cached by value: the n answers of a request share one map, and no request needs to remove its map at its end.
@lru_cache(maxsize=1024)
def _decoded_map(encoded: bytes) -> PositionMap:
    numbers = np.frombuffer(encoded, np.int32)
    return PositionMap(numbers[:-1], int(numbers[-1]))
