import numpy as np
import pytest

from speculator_service.scoring.chunks import chunk_means


@pytest.mark.parametrize(
    ("size", "means"), [(1, [1, 2, 3, 4, 6]), (2, [1.5, 3.5, 6]), (4, [2.5, 6]), (5, [3.2]), (99, [3.2])]
)
def test_the_mean_of_each_chunk(size, means):
    """The last chunk may be shorter; its mean counts its own tokens only."""
    assert chunk_means(np.array([1, 2, 3, 4, 6], np.float32), size).tolist() == pytest.approx(means)
