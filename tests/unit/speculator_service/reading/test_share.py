"""Each window has one replica, which follows from its tokens, and no replica has much more than its share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_service.reading.share import SLACK, shared_out


def texts(sizes, seed=0):
    """A window of each size, with random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50_000, size).astype(np.int32) for size in sizes]


def loads(windows, places, replicas):
    return [sum(w.size for w, place in zip(windows, places, strict=True) if place == one) for one in replicas]


@given(
    sizes=st.lists(st.integers(1, 1024), min_size=1, max_size=40), replicas=st.integers(1, 6), seed=st.integers(0, 99)
)
def test_no_replica_has_much_more_than_its_share(sizes, replicas, seed):
    names, windows = [f"replica {i}" for i in range(replicas)], texts(sizes, seed)
    found = loads(windows, shared_out(windows, names), names)
    assert sum(found) == sum(sizes)
    # Without room anywhere, a window goes to the replica with the least.
    assert max(found) <= max(SLACK * sum(sizes) / replicas, sum(sizes) / replicas + max(sizes))


def test_a_text_meets_the_replica_that_has_read_it_also_in_another_prompt():
    names, met, met_as_tenant = ["a", "b"], [], []
    for seed in range(20):
        document, others = texts([700, 900, 1000, 600] * 6, seed), texts([800] * 20, 100 + seed)
        alone = shared_out(document, names)
        moved = shared_out([*others, *document], names)[len(others) :]
        salted = shared_out(document, names, salt="tenant")
        met.append(np.mean(np.array(moved) == alone))
        met_as_tenant.append(np.mean(np.array(salted) == alone))
    assert np.mean(met) >= 0.9
    assert np.mean(met_as_tenant) < 0.6  # negative control: the KV of a salt is its own, and so are its places


def test_a_replica_that_comes_takes_only_its_own_windows():
    document = texts([512] * 60)
    before, after = shared_out(document, ["a", "b", "c"]), shared_out(document, ["a", "b", "c", "d"])
    stayed = sum(one == other for one, other in zip(before, after, strict=True) if other != "d")
    assert stayed >= 0.85 * (len(document) - after.count("d"))


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_order_in_the_prompt_does_not_matter(replicas):
    names, document = [str(i) for i in range(replicas)], texts(range(100, 900, 50))
    forward, backward = shared_out(document, names), shared_out(document[::-1], names)
    assert forward == backward[::-1]
