"""Where each slot of a compact KV cache sits in the original prompt.

An engine that prefills K of M tokens stores them in slots 0..K-1, but rotates each at the position it came from. The
difference is all a model runner needs: `offset[i] = kept[i] - i` inside the prompt and the constant `M - K` after it,
which covers decoding, the verification of drafts, and resuming after preemption (Speculative Prefill, arXiv 2502.02789,
section 3.3). Imports numpy alone.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Int32Array
from kv_transfer.positions import decode_positions

Int64Array = npt.NDArray[np.int64]

KEPT_POSITIONS = "skim_kept_positions"
"""Key in `SamplingParams.extra_args`; its value is `kv_transfer.positions.encode_positions(...)`."""


class PositionMap:
    """Offsets from slot to original position for one kept prompt.

    kept: int32 [K], strictly ascending in [0, context_length), as KeptPrompt checks them.
    """

    def __init__(self, kept: Int32Array, context_length: int) -> None:
        self.prompt_offsets: Int32Array = kept - np.arange(kept.size, dtype=np.int32)
        self.decode_offset = context_length - kept.size
        # Offsets never fall, so the slots before the first non-zero one are those that a dense prompt would have too.
        self._lead_in = int(np.searchsorted(self.prompt_offsets, 0, side="right"))

    def fill(self, out: Int64Array, start: int, max_position: int | None = None) -> None:
        """Write the offsets of slots start .. start + len(out) - 1 into `out`.

        max_position: positions that the model has. Drafts past the answer's end may have slots past them; those get
        the last one, because rotary embeddings past it would be read outside their table. Their tokens never go out.
        """
        in_prompt = self.prompt_offsets[start : start + out.size]
        out[: in_prompt.size] = in_prompt
        out[in_prompt.size :] = self.decode_offset
        past = start + out.size + self.decode_offset - max_position if max_position else 0
        if past > 0:
            out[-past:] -= np.arange(1, past + 1)

    def block_key(self, start: int, end: int) -> bytes | None:
        """What tells the KV of slots [start, end) from the same tokens at other positions.

        The offsets as little-endian int32, or None when all are zero: such a block is shared with plain requests.
        """
        if self.decode_offset == 0 or end <= self._lead_in:
            return None
        offsets = np.empty(end - start, np.int64)
        self.fill(offsets, start)
        return offsets.astype("<i4").tobytes()


def position_map(extra_args: Mapping[str, Any] | None) -> PositionMap | None:
    """The map of a request with these `SamplingParams.extra_args`; None for a plain request."""
    encoded = extra_args.get(KEPT_POSITIONS) if extra_args else None
    return None if encoded is None else _decoded_map(encoded)


# By value, not by request: the n answers of a request share one map, and nothing has to be told when a request ends.
@lru_cache(maxsize=1024)
def _decoded_map(encoded: bytes) -> PositionMap:
    return PositionMap(*decode_positions(encoded))
