"""Affinity: which prompts have the same key, which replicas a key prefers, and how busy a replica may be."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.prefix_hash import block_hashes
from router.decision.ledger import BLOCK_TOKENS
from router.pools.prefix_affinity import BRANCHES, WINDOW_BLOCKS, PrefixKeys, load_bound, preferred, ranked

WINDOW = BLOCK_TOKENS * WINDOW_BLOCKS
REPLICAS = [f"replica-{i}" for i in range(4)]


def text(name, tokens):
    """Deterministic tokens that no other name has."""
    return random.Random(name).choices(range(1000, 150_000), k=tokens)


SYSTEM = text("system", 700)


def key_of(keys, prompt, opening=0, salt=None):
    """The key of a prompt with the hashes of its blocks."""
    ids = np.array(prompt, np.int32)
    return keys.key(ids, block_hashes(ids, BLOCK_TOKENS, salt), opening, salt)


@given(st.integers(0, 900), st.lists(st.integers(1, 3000), min_size=2, max_size=6), st.integers(0, 5))
def test_all_turns_of_a_conversation_have_one_key_on_every_router(opening, turns, seed):
    """From the first turn that goes a window past the opening; a shorter one has little to be found again."""
    prompt, keys = text("opening", opening), []
    for i, tokens in enumerate(turns):
        prompt = prompt + text(f"{seed} {i}", tokens)
        if len(prompt) >= opening + WINDOW + BLOCK_TOKENS:
            keys.append(key_of(PrefixKeys(), prompt, opening))
            keys.append(key_of(PrefixKeys(), prompt[: len(prompt) - 1], opening))
    assert len(set(keys)) <= 1


def test_questions_about_one_document_have_one_key_and_documents_have_their_own():
    routers = [PrefixKeys(), PrefixKeys()]
    keys = {
        document: {
            key_of(routers[question % 2], SYSTEM + text(document, 5000) + text(f"q{question}", 40), len(SYSTEM))
            for question in range(3 * BRANCHES)
        }
        for document in ("a", "b", "c")
    }
    assert all(len(of_document) == 1 for of_document in keys.values())
    assert len(set.union(*keys.values())) == 3


def test_one_system_prompt_does_not_send_everybody_to_one_replica():
    homes = Counter(
        ranked(key_of(PrefixKeys(), SYSTEM + text(f"user {user}", 2000), len(SYSTEM)), REPLICAS)[0]
        for user in range(400)
    )
    assert set(homes) == set(REPLICAS)
    assert max(homes.values()) < 150
    # Negative control: without the length of the opening, its first window makes the key.
    assert len({key_of(PrefixKeys(), SYSTEM + text(f"user {user}", 2000)) for user in range(BRANCHES)}) == 1


def test_short_prompts_under_one_system_prompt_spread_too():
    assert len({key_of(PrefixKeys(), SYSTEM + text(f"user {user}", 20), len(SYSTEM)) for user in range(50)}) == 50


def test_a_repeated_preamble_is_learned_and_then_told_apart_by_every_router():
    """Raw prompts have no opening: the router sees from their continuations that the preamble is shared."""
    preamble = text("instructions", 5 * WINDOW + 17)
    prompts = [preamble + text(f"document {i}", 3000) for i in range(40)]
    routers = [PrefixKeys(), PrefixKeys(), PrefixKeys()]
    for router in routers:
        first = [key_of(router, prompt) for prompt in random.Random(str(id(router))).sample(prompts, 20)]
        assert len(set(first)) > 1
    keys = [{key_of(router, prompt) for router in routers} for prompt in prompts]
    assert all(len(of_prompt) == 1 for of_prompt in keys)
    assert len(set.union(*keys)) == len(prompts)
    questions = {key_of(routers[0], prompts[0] + text(f"q{i}", 30)) for i in range(20)}
    assert questions == keys[0]


def test_salts_have_keys_of_their_own():
    prompt = text("document", 3000)
    assert len({key_of(PrefixKeys(), prompt, 0, salt) for salt in (None, "a", "b")}) == 3


def test_old_prefixes_are_forgotten():
    keys = PrefixKeys(capacity=100)
    for i in range(50):
        key_of(keys, text(f"{i}", 8000))
    assert len(keys._continuations) == 100


@given(st.text(max_size=8), st.sets(st.integers(), min_size=1, max_size=20), st.integers())
def test_a_replica_that_leaves_moves_only_its_own_keys(key, replicas, newcomer):
    order = ranked(key, sorted(replicas))
    assert sorted(order) == sorted(replicas)
    assert ranked(key, order[::-1]) == order
    gone = order[0]
    assert ranked(key, [one for one in replicas if one != gone]) == order[1:]
    grown = ranked(key, [*(replicas - {newcomer}), newcomer])
    assert [one for one in grown if one != newcomer] == [one for one in order if one != newcomer]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_some_replica_is_always_within_the_bound(loads):
    assert min(loads) < load_bound(loads)


@pytest.mark.parametrize(("loads", "bound"), [([0], 3), ([0] * 4, 2), ([8, 8, 8, 8], 12), ([100, 0, 0, 0], 33)])
def test_the_bound_follows_the_average(loads, bound):
    assert load_bound(loads) == bound


def test_replicas_beyond_the_bound_or_their_own_limit_are_told_apart():
    order = ranked("key", REPLICAS)
    loads, most = dict.fromkeys(REPLICAS, 0), dict.fromkeys(REPLICAS, 10)
    assert preferred("key", loads, most) == (order, [])
    loads[order[0]] = load_bound([9, 0, 0, 0])
    assert preferred("key", loads, most) == (order[1:], order[:1])
    most[order[2]] = 0
    assert preferred("key", loads, most) == ([order[1], order[3]], [order[0], order[2]])
    loads = dict.fromkeys(REPLICAS, 10)
    assert preferred("key", loads, most) == ([], order)
