"""What a router believes to be cached: longest known prefix, age, and what misses and hits teach."""

import random

from kv_transfer.prefix_hash import block_hashes
from router.decision.cache_ledger import BLOCK_TOKENS, CacheLedger, Found


def text(name, blocks):
    return random.Random(name).choices(range(10_000), k=blocks * BLOCK_TOKENS)


def hashes(*parts):
    return block_hashes([token for part in parts for token in part], BLOCK_TOKENS)


def add(ledger, blocks):
    ledger.add(blocks, [10 * (i + 1) for i in range(len(blocks))])


def test_the_longest_known_beginning_is_found():
    ledger, document = CacheLedger(), text("document", 5)
    add(ledger, hashes(document))
    assert ledger.find(hashes(document, text("question", 2))) == Found(5 * BLOCK_TOKENS, 50, 0)
    assert ledger.find(hashes(document[: 3 * BLOCK_TOKENS], text("other", 4))) == Found(3 * BLOCK_TOKENS, 30, 0)
    assert ledger.find(hashes(text("other", 4))) == Found()


def test_what_was_written_since_makes_a_prefix_old():
    ledger, document = CacheLedger(), hashes(text("document", 5))
    add(ledger, document)
    ledger.wrote(1000)
    assert ledger.find(document).age == 1000
    add(ledger, document)
    assert ledger.find(document).age == 0


def test_a_few_misses_find_the_size_of_the_cache():
    """A pool whose LRU cache holds eight documents. Most prompts are new; some are about one of the last sixteen."""
    ledger, held, wrong, choose = CacheLedger(), [], [], random.Random(1)
    for i in range(300):
        name = i if i < 16 or choose.random() < 0.7 else choose.randrange(i - 16, i)
        prompt = hashes(text(str(name), 20))
        found = ledger.find(prompt)
        cached = 20 * BLOCK_TOKENS if name in held else 0
        if i > 150 and name != i:
            wrong.append((found.tokens > 0) != (cached > 0))
        ledger.correct(found, found.tokens, cached)
        ledger.wrote(20 * BLOCK_TOKENS - cached)
        add(ledger, prompt)
        held = [*(one for one in held if one != name), name][-8:]
    assert 8 * 20 * BLOCK_TOKENS < ledger.horizon < 16 * 20 * BLOCK_TOKENS
    assert len(wrong) > 30
    assert sum(wrong) / len(wrong) < 0.3


def test_one_miss_on_another_replica_does_not_end_trust():
    ledger, document = CacheLedger(), hashes(text("document", 20))
    add(ledger, document)
    ledger.wrote(5000)
    found = ledger.find(document)
    ledger.correct(found, found.tokens, 0)
    assert ledger.find(document).tokens == found.tokens


def test_the_oldest_blocks_are_forgotten_and_beginnings_last():
    ledger = CacheLedger(max_blocks=10)
    old, new = hashes(text("old", 8)), hashes(text("new", 6))
    add(ledger, old)
    add(ledger, new)
    assert len(ledger) == 10
    assert ledger.find(old).tokens == 4 * BLOCK_TOKENS
    assert ledger.find(new).tokens == 6 * BLOCK_TOKENS


def test_a_prefix_counts_as_evicted_after_so_many_written_tokens():
    ledger, blocks = CacheLedger(), hashes(text("document", 4))
    ledger.horizon = 1000
    ledger.add(blocks, [0] * len(blocks))
    ledger.wrote(1000)
    assert ledger.find(blocks) == Found(4 * BLOCK_TOKENS, 0, 1000)
    ledger.wrote(1)
    assert ledger.find(blocks) == Found()
    # Its use makes it young again.
    ledger.add(blocks, [0] * len(blocks))
    assert ledger.find(blocks).age == 0
