"""Records are found by the tokens that a prompt begins with, per cache salt, and bounded in tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.arrays import Int32Array
from kv_transfer.options import SelectionOptions
from kv_transfer.prefix_hash import block_hashes
from speculator_service.selection.records import BLOCK_SIZE, Record, Records


def ids(*parts: tuple[int, int]) -> Int32Array:
    """`count` times the token, for each part (token, count)."""
    return np.concatenate([np.full(count, token, np.int32) for token, count in parts])


KEPT = np.array([5, 0, 7], np.int32)
OPTIONS = SelectionOptions()


def test_the_longest_common_beginning_counts() -> None:
    records = Records()
    records.add(ids((1, 100)), KEPT[:1], OPTIONS)
    records.add(ids((1, 100), (2, 100)), KEPT, OPTIONS)
    found = records.find(ids((1, 100), (2, 70), (3, 500)))
    assert found is not None
    assert found[1] == 170  # exact, although only whole blocks are hashed
    assert found[0].positions.tolist() == KEPT.tolist()
    short = records.find(ids((1, 64)))
    assert short is not None
    assert short[1] == 64


def test_of_several_the_newest_counts() -> None:
    records = Records()
    records.add(ids((1, 64), (2, 64)), KEPT, OPTIONS)
    records.add(ids((1, 64), (3, 64)), KEPT[:2], OPTIONS)
    found = records.find(ids((1, 64), (4, 64)))
    assert found is not None
    assert found[0].positions.tolist() == KEPT[:2].tolist()


@pytest.mark.parametrize("other", [None, "", "b"])
def test_another_salt_shares_nothing(other: str | None) -> None:
    records = Records()
    records.add(ids((1, 100)), KEPT, OPTIONS, "a")
    assert records.find(ids((1, 100)), other) is None
    assert records.find(ids((1, 100)), "a") is not None


def test_less_than_a_block_is_not_found() -> None:
    records = Records()
    records.add(ids((1, BLOCK_SIZE - 1)), KEPT, OPTIONS)
    assert len(records) == 0
    records.add(ids((1, BLOCK_SIZE)), KEPT, OPTIONS)
    assert records.find(ids((1, BLOCK_SIZE - 1), (2, 9))) is None


def test_the_least_recently_used_record_goes_first() -> None:
    records = Records(max_tokens=300)
    for token in (1, 2, 3):
        records.add(ids((token, 100)), KEPT, OPTIONS)
    assert records.find(ids((1, 100))) is not None
    records.add(ids((4, 100)), KEPT, OPTIONS)
    assert records.find(ids((2, 100))) is None
    assert all(records.find(ids((token, 100))) is not None for token in (1, 3, 4))
    records.add(ids((5, 301)), KEPT, OPTIONS)
    assert records.find(ids((5, 301))) is None
    assert (len(records), records.tokens) == (3, 300)


def test_a_record_replaces_the_one_that_it_continues() -> None:
    records = Records()
    records.add(ids((1, 100)), KEPT, OPTIONS)
    found = records.find(ids((1, 100)))
    assert found is not None
    records.add(ids((1, 200)), KEPT[:2], OPTIONS, replaces=found[0])
    assert (len(records), records.tokens) == (1, 200)
    # A second request that extended the old record meanwhile adds its own.
    records.add(ids((1, 100), (2, 100)), KEPT, OPTIONS, replaces=found[0])
    assert len(records) == 2


def test_the_callers_arrays_are_not_shared() -> None:
    records, prompt, kept = Records(), ids((1, 64)), KEPT.copy()
    records.add(prompt, kept, OPTIONS)
    prompt[:], kept[:] = 2, 9
    found = records.find(ids((1, 64)))
    assert found is not None
    assert (found[1], found[0].positions.tolist()) == (64, KEPT.tolist())


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=8), st.sampled_from([None, "a"])), max_size=12))
def test_any_order_of_calls_finds_the_longest_common_beginning(prompts: list[tuple[list[int], str | None]]) -> None:
    """Against a plain search; each number stands for one block."""
    records = Records(max_tokens=20 * BLOCK_SIZE)
    kept: list[tuple[list[int], str | None]] = []
    for blocks, salt in prompts:
        prompt = np.repeat(np.array(blocks, np.int32), BLOCK_SIZE)
        found = records.find(prompt, salt)
        shared = [_shared(blocks, known) for known, known_salt in kept if known_salt == salt]
        assert (0 if found is None else found[1]) == BLOCK_SIZE * max(shared, default=0)
        records.add(prompt, KEPT, OPTIONS, salt)
        kept = [([int(t) for t in record.token_ids[::BLOCK_SIZE]], _salt(record)) for record in records._records]
        assert records.tokens == sum(BLOCK_SIZE * len(known) for known, _ in kept) <= 20 * BLOCK_SIZE


def _shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _salt(record: Record) -> str | None:
    return next(salt for salt in (None, "a") if block_hashes(record.token_ids, BLOCK_SIZE, salt) == record.blocks)
