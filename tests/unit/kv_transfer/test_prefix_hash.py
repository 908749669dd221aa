"""Chained block hashes: equal for equal prefixes, different after the first different token, apart by salt."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.prefix_hash import block_hashes, prefix_hash

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=60)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(IDS, IDS, IDS, st.integers(1, 9))
def test_two_prompts_share_the_hashes_of_their_common_whole_blocks(shared, one, other, size):
    a, b = shared + one, shared + other
    first, second = block_hashes(a, size), block_hashes(b, size)
    assert (len(first), len(second)) == (len(a) // size, len(b) // size)
    assert common(first, second) == common(a, b) // size
    assert len({*first, *second}) == len(first) + len(second) - common(first, second)


@given(IDS.filter(lambda ids: len(ids) >= 3), st.text(), st.text())
def test_salts_share_nothing(ids, salt, other):
    hashes = block_hashes(ids, 3, salt)
    assert hashes == block_hashes(np.array(ids, np.int32), 3, salt)
    assert not {*hashes} & {*block_hashes(ids, 3)}
    if salt != other:
        assert not {*hashes} & {*block_hashes(ids, 3, other)}
        assert prefix_hash(ids, salt) != prefix_hash(ids, other)


@given(IDS, st.integers(0, 5))
def test_known_hashes_are_continued(ids, known):
    hashes = block_hashes(ids, 3, "salt")
    assert block_hashes(ids, 3, "salt", known=hashes[:known]) == hashes
    changed = [b"other", *hashes[1:]][: len(hashes)]
    assert block_hashes(ids, 3, "salt", known=changed)[: len(changed)] == changed, "known hashes are not computed again"


def test_another_process_computes_the_same():
    program = "from kv_transfer.prefix_hash import *; print(block_hashes(range(5), 2, 's')[-1].hex())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == block_hashes([0, 1, 2, 3, 4], 2, "s")[-1].hex()


def test_a_block_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        block_hashes([1], 0)


@given(IDS, IDS)
def test_a_prefix_of_any_length_has_its_own_hash(a, b):
    assert (prefix_hash(a) == prefix_hash(b)) == (a == b)
