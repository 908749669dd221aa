"""Whether a conversation is caught up, in which reads, and with which pauses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision.catch_up import (
    CHUNK_MS,
    CHUNK_TOKENS,
    FREE_SHARE,
    FRESH_TOKENS,
    LEAST_CHUNK,
    LIKELY,
    STREAM_SHARE,
    chunk_tokens,
    next_read,
    pause_ms,
    plan,
    stays_dense,
)
from router.decision.choice import Decision
from router.decision.conversations import goes_on
from router.decision.ledger import BLOCK_TOKENS
from router.options.request import PrefillOptions

SMALL = {"tokens": 1000, "room": 10_000.0}


@pytest.mark.parametrize(
    ("options", "known", "expected"),
    [
        ({}, {}, "off;reason=no-later-turn"),
        ({}, {"share": LIKELY}, "planned;reason=later-turns"),
        ({}, {"share": LIKELY - 0.01}, "off;reason=no-later-turn"),
        ({}, {"later_requests": 0, "share": 1.0}, "off;reason=no-later-turn"),
        ({}, {"later_requests": 2}, "planned;reason=later-requests"),
        ({}, {"audited": True, "later_requests": 0}, "planned;reason=audit"),
        ({}, {"share": 1.0, "has_home": False}, "off;reason=no-affinity"),
        ({}, {"share": 1.0, "tokens": 6000}, "off;reason=no-room"),
        ({}, {"share": 1.0, "room": 0.0}, "off;reason=no-room"),
        ({}, {"share": 1.0, "others": 9000, "capacity": 10_000.0}, "planned;reason=later-turns"),
        ({}, {"share": 1.0, "others": 9001, "capacity": 10_000.0}, "off;reason=no-room"),
        ({"catch_up": "always"}, {"others": 9001, "capacity": 10_000.0}, "planned;reason=requested"),
        ({"enabled": "always"}, {"share": 1.0}, "off;reason=always"),
        ({"catch_up": "off"}, {"share": 1.0}, "off;reason=disabled"),
        ({"catch_up": "always"}, {"later_requests": 0, "has_home": False}, "planned;reason=requested"),
        ({"catch_up": "always", "enabled": "always"}, {}, "planned;reason=requested"),
        ({"catch_up": "always"}, {"room": 0.0}, "off;reason=no-room"),
    ],
)
def test_the_plan(options, known, expected):
    planned, reason = plan(PrefillOptions(**options), **{**SMALL, **known})
    assert f"{'planned' if planned else 'off'};reason={reason}" == expected


def test_a_conversation_takes_its_share_of_the_cache_and_no_more():
    for tokens, wanted in ((5000, True), (5001, False)):
        found = plan(PrefillOptions(), tokens=tokens, room=5000 / FREE_SHARE, later_requests=1)
        assert found == (wanted, "later-requests" if wanted else "no-room")


def reads(prompt, answer, scored=0, chunk=CHUNK_TOKENS, done=0):
    """All reads of a conversation."""
    found = []
    while done < prompt + answer:
        done, told = next_read(done, prompt, scored, prompt + answer, chunk)
        found.append((done, told))
        scored = 0 if told else scored
    return found


def test_the_reads_of_a_prompt_and_its_answer():
    assert reads(5000, 100) == [(2048, 0), (4096, 0), (5100, 0)]
    assert reads(5000, 100, scored=100) == [(2048, 0), (4096, 0), (4992, 0), (5100, 100)]
    assert reads(5000, 3000, scored=128) == [(2048, 0), (4096, 0), (4992, 0), (5128, 128), (7168, 0), (8000, 0)]
    assert reads(4096, 10, scored=10) == [(2048, 0), (3968, 0), (4106, 10)], "the answer's first token is computed"
    assert reads(5000, 100, done=4864) == [(5100, 0)]


@given(st.integers(1, 9000), st.integers(0, 3000), st.sampled_from([256, 1024, 2048]), st.booleans(), st.integers(0, 9))
def test_each_read_has_at_most_a_chunk_of_new_tokens(prompt, answer, chunk, scores, blocks):
    scored = min(128, answer) if scores else 0
    done = min(blocks * BLOCK_TOKENS, (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
    found = reads(prompt, answer, scored, chunk, done)
    if not found:
        assert done == prompt + answer
        return
    assert found[-1][0] == prompt + answer
    for end, told in found:
        assert 0 < end - done <= (BLOCK_TOKENS + told if told else chunk)
        assert end % BLOCK_TOKENS == 0 or told or end == prompt + answer
        done = end
    assert [told for _, told in found if told] == ([scored] if scored else [])


@pytest.mark.parametrize(
    ("reason", "known", "new", "stays"),
    [
        ("sooner", 20_000, FRESH_TOKENS, True),
        ("probe", 20_000, 100, True),
        ("sooner", 20_000, FRESH_TOKENS + 1, False),
        ("load", 20_000, 100, False),
        ("sooner", 2000, 2001, False),
    ],
)
def test_a_conversation_stays_dense_for_fresh_text(reason, known, new, stays):
    assert stays_dense(Decision(True, reason), known, known + new) == stays


def test_a_chunk_takes_half_a_second_at_most_if_it_can():
    assert chunk_tokens(lambda tokens: None) == CHUNK_TOKENS
    assert chunk_tokens(lambda tokens: CHUNK_MS / CHUNK_TOKENS * tokens) == CHUNK_TOKENS
    assert chunk_tokens(lambda tokens: 1.01 * CHUNK_MS / CHUNK_TOKENS * tokens) == CHUNK_TOKENS // 2
    assert chunk_tokens(lambda tokens: 1e6) == LEAST_CHUNK


def test_with_its_pause_a_chunk_leaves_streams_their_share():
    for ms in (1.0, 480.0):
        assert pause_ms(ms) / (ms + pause_ms(ms)) == pytest.approx(STREAM_SHARE)


def test_a_later_turn_begins_with_most_of_the_conversation():
    blocks = [bytes([i]) for i in range(20)]
    assert goes_on(blocks, 0, blocks)
    assert goes_on(blocks, 0, [*blocks, b"more"])
    assert goes_on(blocks, 0, [*blocks[:11], b"edited"])
    assert not goes_on(blocks, 0, [*blocks[:10], b"another"])
    # Of 20 blocks, 12 are a system prompt that conversations share.
    assert not goes_on(blocks, 12 * BLOCK_TOKENS, [*blocks[:13], b"another"])
    assert goes_on(blocks, 12 * BLOCK_TOKENS, blocks[:17])
    assert not goes_on([], 0, blocks)
