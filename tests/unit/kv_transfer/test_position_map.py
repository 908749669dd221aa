"""The map from slots to original positions, compared with the definition for each slot."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import PositionMap, batch_offsets, position_args, position_map


@st.composite
def kept_prompts(draw: st.DrawFn) -> KeptPrompt:
    context = draw(st.integers(1, 200))
    kept = draw(st.lists(st.integers(0, context - 1), min_size=1, unique=True))
    if draw(st.booleans()):
        kept.sort()
    return KeptPrompt(np.zeros(len(kept), np.int32), np.array(kept, np.int32), context)


def slow_position(prompt: KeptPrompt, slot: int) -> int:
    """The position of `slot`: for a kept token its original position, for decoded tokens from the context length on."""
    kept = prompt.positions.tolist()
    return kept[slot] if slot < len(kept) else prompt.context_length + slot - len(kept)


def filled(prompt: KeptPrompt, start: int, count: int) -> list[int]:
    out = np.full(count, -999, np.int64)
    PositionMap(prompt.positions, prompt.context_length).fill(out, start)
    return (out + np.arange(start, start + count)).tolist()


@given(kept_prompts(), st.integers(0, 300), st.integers(0, 80))
def test_every_slot_gets_its_original_position(prompt: KeptPrompt, start: int, count: int) -> None:
    assert filled(prompt, start, count) == [slow_position(prompt, s) for s in range(start, start + count)]


def test_decoding_begins_at_the_context_length() -> None:
    prompt = KeptPrompt(np.arange(5, dtype=np.int32), np.array([0, 1, 3, 6, 7], np.int32), 10)
    assert filled(prompt, 0, 8) == [0, 1, 3, 6, 7, 10, 11, 12]


@given(kept_prompts(), st.integers(0, 12), st.integers(1, 16))
def test_a_block_has_a_key_unless_all_its_slots_are_where_a_plain_request_has_them(
    prompt: KeptPrompt, block: int, size: int
) -> None:
    start, end = block * size, (block + 1) * size
    offsets = [slow_position(prompt, s) - s for s in range(start, end)]
    key = PositionMap(prompt.positions, prompt.context_length).block_key(start, end)
    assert key == (np.array(offsets, "<i4").tobytes() if any(offsets) else None)


@st.composite
def permutations(draw: st.DrawFn) -> KeptPrompt:
    """A whole prompt whose segments stand in any order, so that many blocks have plain positions."""
    size = draw(st.integers(1, 60))
    cuts = sorted(draw(st.sets(st.integers(1, size))) | {0, size})
    parts = draw(st.permutations([range(start, end) for start, end in itertools.pairwise(cuts)]))
    return KeptPrompt(np.zeros(size, np.int32), np.array([p for part in parts for p in part], np.int32), size)


@given(permutations(), st.integers(0, 12), st.integers(1, 16))
def test_a_block_of_a_whole_prompt_in_another_order_is_plain_only_by_its_own_positions(
    prompt: KeptPrompt, block: int, size: int
) -> None:
    slots = range(block * size, (block + 1) * size)
    key = PositionMap(prompt.positions, prompt.context_length).block_key(slots.start, slots.stop)
    assert (key is None) == all(slow_position(prompt, s) == s for s in slots)


def test_a_reversed_prompt_shares_no_block_with_a_plain_one() -> None:
    """Its decode offset is 0, and its middle tokens are where a plain prompt has them."""
    reversed_map = PositionMap(np.arange(64, dtype=np.int32)[::-1].copy(), 64)
    assert [reversed_map.block_key(start, start + 16) is None for start in range(0, 80, 16)] == [False] * 4 + [True]
    swapped = PositionMap(np.r_[48:64, 16:48, 0:16].astype(np.int32), 64)
    assert [swapped.block_key(start, start + 16) is None for start in range(0, 64, 16)] == [False, True, True, False]


@given(kept_prompts(), kept_prompts(), st.integers(0, 12), st.integers(1, 16))
def test_blocks_share_a_key_exactly_when_their_positions_are_equal(
    one: KeptPrompt, other: KeptPrompt, block: int, size: int
) -> None:
    slots = range(block * size, (block + 1) * size)
    keys = [PositionMap(p.positions, p.context_length).block_key(slots.start, slots.stop) for p in (one, other)]
    positions = [[slow_position(p, s) for s in slots] for p in (one, other)]
    assert (keys[0] == keys[1]) == (positions[0] == positions[1])


@given(kept_prompts())
def test_the_map_is_read_from_extra_args(prompt: KeptPrompt) -> None:
    args = position_args(prompt)
    assert bool(args) == (not prompt.is_dense)
    if prompt.is_dense:
        return
    restored = position_map({"other": 1, **args})
    assert restored is not None
    assert restored.prompt_offsets.tolist() == (prompt.positions - np.arange(prompt.positions.size)).tolist()
    assert restored.decode_offset == prompt.context_length - prompt.positions.size


def test_plain_requests_have_no_map() -> None:
    assert position_map(None) is None
    assert position_map({}) is None
    assert position_map({"kept_positions": b"not ours"}) is None


def test_the_offsets_of_a_step_with_a_plain_request_between_kept_ones() -> None:
    kept = PositionMap(np.array([0, 2, 5], np.int32), 8)
    starts, computed = np.array([0, 2, 5, 6, 99]), np.array([1, 7, 6, 99])
    found = batch_offsets([kept, None, kept], starts, computed)
    assert found is not None
    assert found.tolist() == [1, 3, 0, 0, 0, 5]
    assert batch_offsets([None, None], starts, computed) is None
