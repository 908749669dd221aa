"""What two sequences of tokens begin with alike."""

from typing import Any

import numpy as np
import numpy.typing as npt


def common_prefix(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """The number of elements, or of rows, with which both begin."""
    size = min(len(a), len(b))
    differ = np.nonzero(a[:size] != b[:size])[0]
    return int(differ[0]) if differ.size else size
