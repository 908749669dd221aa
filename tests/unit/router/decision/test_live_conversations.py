"""Which conversations came back, and the room that they need."""

from router.decision import live_conversations
from router.decision.cache_ledger import BLOCK_TOKENS
from router.decision.live_conversations import IDLE_S, LiveConversations

HEAD = [b"system"]
OPENING = BLOCK_TOKENS - 1


def test_those_that_came_back_count_with_their_latest_length():
    live = LiveConversations()
    live.note([*HEAD, b"a"], OPENING, 1000, 0.0)
    assert live.others([*HEAD, b"b"], OPENING, 1.0) == 0, "it never came back"
    live.note([*HEAD, b"a", b"c"], OPENING, 1500, 2.0)
    assert live.others([*HEAD, b"b"], OPENING, 3.0) == 1500
    assert live.others([*HEAD, b"a"], OPENING, 3.0) == 0, "its own"
    assert live.others([*HEAD, b"b"], OPENING, 3.0 + IDLE_S) == 0, "it has ended"


def test_a_prompt_without_a_block_of_its_own_is_no_conversation():
    live = LiveConversations()
    for _ in range(2):
        live.note(HEAD, OPENING, BLOCK_TOKENS, 0.0)
    assert live.others([*HEAD, b"b"], OPENING, 0.0) == 0


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(live_conversations, "MOST", 2)
    live = LiveConversations()
    for name in (b"a", b"a", b"b", b"b", b"c", b"c"):
        live.note([*HEAD, name], OPENING, 100, 0.0)
    assert live.others([*HEAD, b"d"], OPENING, 0.0) == 200
