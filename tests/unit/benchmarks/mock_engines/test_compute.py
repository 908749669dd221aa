"""The mock engines' prefix cache: what it finds, what it evicts, and the time that follows from it."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import virtual_time
from benchmarks.mock_engines.compute import MockCompute, MockPrefixCache


def ids(*runs):
    return np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in runs])


def plain(tokens):
    return tokens, np.arange(tokens.size, dtype=np.int32)


def found(cache, tokens, salt=None):
    return cache.look_up(*plain(tokens), salt)


def test_a_shared_prefix_is_found_in_whole_blocks_and_the_last_token_is_computed():
    cache = MockPrefixCache(1000, block_size=4)
    assert found(cache, ids((0, 20))) == 0
    cache.store(*plain(ids((0, 20))))
    assert found(cache, ids((0, 20))) == 16
    assert found(cache, ids((0, 21))) == 20
    assert found(cache, ids((0, 14), (50, 60))) == 12
    assert found(cache, ids((1, 20))) == 0


def test_other_positions_or_another_salt_share_nothing():
    cache = MockPrefixCache(1000, block_size=4)
    tokens, positions = plain(ids((0, 20)))
    cache.store(tokens, positions, "a")
    moved = positions.copy()
    moved[10:] += 1
    assert cache.look_up(tokens, moved, "a") == 8
    assert cache.look_up(tokens, positions, "b") == cache.look_up(tokens, positions) == 0


def test_the_least_recently_used_prompt_goes_first_and_its_last_blocks_before_its_first():
    cache = MockPrefixCache(40, block_size=4)
    old, new, more = ids((0, 20)), ids((100, 120)), ids((200, 208))
    for tokens in (old, new):
        cache.store(*plain(tokens))
    found(cache, np.append(old, 1))
    cache.store(*plain(more))
    assert found(cache, np.append(old, 1)) == 20
    assert found(cache, np.append(new, 1)) == 12
    assert found(cache, np.append(more, 1)) == 8


def test_a_prompt_larger_than_the_cache_leaves_its_beginning():
    cache = MockPrefixCache(8, block_size=4)
    cache.store(*plain(ids((0, 20))))
    assert found(cache, ids((0, 20))) == 8


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=30), st.integers(0, 60))
def test_it_never_finds_what_was_not_stored_and_never_holds_more_than_its_capacity(prompts, capacity):
    cache, stored = MockPrefixCache(capacity, block_size=2), set()
    for begin, length in prompts:
        tokens = ids((begin * 100, begin * 100 + length))
        hit = found(cache, tokens)
        assert hit <= min(capacity, length - 1)
        assert tuple(tokens[:hit]) in {prompt[:hit] for prompt in stored} | {()}
        cache.store(*plain(tokens))
        stored.add(tuple(tokens))
        assert len(cache._held) <= capacity // 2


@pytest.fixture
def slept(monkeypatch):
    asked = []

    async def sleep(seconds):
        asked.append(1e3 * seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return asked


@pytest.mark.parametrize(("capacity", "second"), [(1000, 5 + 2 * 4), (0, 5 + 2 * 20)])
async def test_only_computed_tokens_take_time(slept, capacity, second):
    compute = MockCompute(5.0, 2.0, capacity, 4, one_at_a_time=False)
    prompt = plain(ids((0, 20)))
    done = [await compute.prefill(*prompt, None, more_ms=extra) for extra in (1.0, 0.0)]
    assert slept == pytest.approx([46.0, second])
    assert [d.ms for d in done] == pytest.approx(slept)
    assert (compute.cached_tokens, compute.computed_tokens) == ((16, 24) if capacity else (0, 40))


@pytest.mark.parametrize(("one_at_a_time", "waits"), [(True, [0, 20, 40]), (False, [0, 0, 0])])
def test_prefills_wait_for_each_other_if_told_so(one_at_a_time, waits):
    compute = MockCompute(20.0, 0.0, 0, 4, one_at_a_time)

    async def prefills():
        return await asyncio.gather(*(compute.prefill(*plain(ids((n, n + 8))), None) for n in range(3)))

    assert [done.queue_ms for done in virtual_time.run(prefills())] == pytest.approx(waits)
