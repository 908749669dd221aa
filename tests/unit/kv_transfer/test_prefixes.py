"""The common prefix of arrays, compared with a loop over lists."""

import itertools

import numpy as np
import pytest

from kv_transfer.arrays import common_prefix


def by_a_loop(a, b):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("columns", [None, 2])
def test_it_is_what_a_loop_counts(columns):
    shape = () if columns is None else (columns,)
    random = np.random.default_rng(0)
    for sizes in itertools.product(range(5), range(5)):
        for _ in range(8):
            a, b = (random.integers(0, 2, (size, *shape)) for size in sizes)
            assert common_prefix(a, b) == by_a_loop(a.tolist(), b.tolist())
