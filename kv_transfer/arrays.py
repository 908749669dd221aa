"""The arrays of the messages: token ids and positions are int32, scores float32."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


def no_numbers() -> Int32Array:
    """int32 [0]."""
    return np.empty(0, np.int32)


def no_pairs() -> Int32Array:
    """int32 [0, 2]."""
    return np.empty((0, 2), np.int32)


def no_scores() -> Float32Array:
    """float32 [0]."""
    return np.empty(0, np.float32)
