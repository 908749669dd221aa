"""Chunks: runs of `chunk_size` tokens of a prompt, counted from its start; the last one may be shorter."""

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Float32Array


def chunk_means(importance: Float32Array, size: int) -> npt.NDArray[np.float64]:
    """The mean importance of each chunk of `size` tokens: float64 [ceil(M / size)]. importance: float32 [M], M > 0."""
    starts = np.arange(0, importance.size, size)
    sums = np.add.reduceat(importance.astype(np.float64), starts)
    return sums / np.diff(np.append(starts, importance.size))
