"""What a router believes to be cached: longest known prefix, age, and what misses and hits teach."""

import random

import numpy as np
import pytest

from kv_transfer.prefix_hash import block_hashes
from router.decision.ledger import BLOCK_TOKENS, CachedPrefix, CacheLedger

DOCUMENT = 20 * BLOCK_TOKENS


def text(name, blocks):
    return random.Random(name).choices(range(10_000), k=blocks * BLOCK_TOKENS)


def prompt(*parts):
    """The ids and the hashes of a prompt."""
    ids = np.array([token for part in parts for token in part], np.int32)
    return ids, block_hashes(ids, BLOCK_TOKENS)


def add(ledger, ids, hashes):
    ledger.add(ids, hashes, range(BLOCK_TOKENS, BLOCK_TOKENS * len(hashes) + 1, BLOCK_TOKENS))


def found(blocks, age=0):
    return CachedPrefix(blocks * BLOCK_TOKENS, blocks * BLOCK_TOKENS, age)


def test_the_longest_known_beginning_is_found():
    ledger, document = CacheLedger(), text("document", 5)
    ledger.add(*prompt(document), [10, 20, 30, 40, 50])
    assert ledger.find(*prompt(document, text("question", 2))) == CachedPrefix(5 * BLOCK_TOKENS, 50, 0)
    assert ledger.find(*prompt(document[: 3 * BLOCK_TOKENS], text("other", 4))) == CachedPrefix(3 * BLOCK_TOKENS, 30, 0)
    assert ledger.find(*prompt(text("other", 4))) == CachedPrefix()


def test_the_end_of_a_prompt_is_found_token_by_token():
    ledger, document, end = CacheLedger(), text("document", 5), text("end", 1)[:50]
    ledger.add(*prompt(document, end), [10, 20, 30, 40, 50])
    assert ledger.find(*prompt(document, end, text("next", 2))) == CachedPrefix(5 * BLOCK_TOKENS + 50, 100, 0)
    assert ledger.find(*prompt(document, end[:20], text("other", 2))) == CachedPrefix(5 * BLOCK_TOKENS + 20, 70, 0)
    assert ledger.find(*prompt(document)) == CachedPrefix(5 * BLOCK_TOKENS, 50, 0)


def test_what_was_written_since_makes_a_prefix_old():
    ledger, document = CacheLedger(), prompt(text("document", 5))
    add(ledger, *document)
    ledger.wrote(1000)
    assert ledger.find(*document).age == 1000
    add(ledger, *document)
    assert ledger.find(*document).age == 0


@pytest.mark.parametrize(("told", "most_wrong"), [(True, 0.15), (False, 0.3)])
def test_the_size_of_the_cache_is_told_or_learned_by_a_few_misses(told, most_wrong):
    """A pool whose LRU cache holds eight documents. Most prompts are new; some are about one of the last sixteen."""
    ledger, held, wrong, choose = CacheLedger(), [], [], random.Random(1)
    if told:
        ledger.capacity = 8 * DOCUMENT
    for i in range(300):
        name = i if i < 16 or choose.random() < 0.7 else choose.randrange(i - 16, i)
        asked = prompt(text(str(name), 20))
        known = ledger.find(*asked)
        cached = DOCUMENT if name in held else 0
        if (told or i > 150) and name != i:
            wrong.append((known.tokens > 0) != (cached > 0))
        ledger.correct(known, cached)
        ledger.wrote(DOCUMENT - cached)
        add(ledger, *asked)
        held = [*(one for one in held if one != name), name][-8:]
    assert len(wrong) > 30
    assert sum(wrong) / len(wrong) < most_wrong
    assert 4 * DOCUMENT < ledger.horizon < 16 * DOCUMENT


def test_one_miss_on_another_replica_does_not_end_trust():
    ledger, document = CacheLedger(), prompt(text("document", 20))
    add(ledger, *document)
    ledger.wrote(5000)
    known = ledger.find(*document)
    ledger.correct(known, 0)
    assert ledger.find(*document).tokens == known.tokens


def test_a_horizon_that_misses_have_shortened_grows_by_hits_up_to_the_capacity():
    ledger = CacheLedger()
    ledger.capacity = 100 * BLOCK_TOKENS
    for _ in range(4):
        ledger.correct(found(8, 10 * BLOCK_TOKENS), 0)
    assert 18 * BLOCK_TOKENS < ledger.horizon < 25 * BLOCK_TOKENS
    for age in (20, 40, 80):
        ledger.correct(found(8, age * BLOCK_TOKENS), 8 * BLOCK_TOKENS)
    assert ledger.horizon == ledger.capacity


def test_the_oldest_blocks_are_forgotten_and_beginnings_last():
    ledger = CacheLedger(max_blocks=10)
    old, new = prompt(text("old", 8)), prompt(text("new", 6))
    add(ledger, *old)
    add(ledger, *new)
    assert len(ledger) == 10
    assert ledger.find(*old) == found(4)
    assert ledger.find(*new) == found(6)


def test_a_prefix_counts_as_evicted_after_so_many_written_tokens():
    """The end of a prompt is evicted first."""
    ledger, document = CacheLedger(), prompt(text("document", 4))
    ledger.capacity = 1000
    add(ledger, *document)
    ledger.wrote(1000 - 4 * BLOCK_TOKENS)
    assert ledger.find(*document) == found(4, 1000 - 4 * BLOCK_TOKENS)
    ledger.wrote(1)
    assert ledger.find(*document).tokens == 3 * BLOCK_TOKENS
    ledger.wrote(4 * BLOCK_TOKENS)
    assert ledger.find(*document) == CachedPrefix()
    # Its use makes it young again.
    add(ledger, *document)
    assert ledger.find(*document).age == 0


def test_the_use_of_an_old_prefix_makes_others_older():
    ledger, one, other = CacheLedger(), prompt(text("one", 4)), prompt(text("other", 4))
    ledger.capacity = 20 * BLOCK_TOKENS
    add(ledger, *one)
    ledger.wrote(12 * BLOCK_TOKENS)
    add(ledger, *other)
    add(ledger, *one)
    assert ledger.find(*other).age == 4 * BLOCK_TOKENS
    add(ledger, *other)
    assert ledger.find(*one).age == 0
