"""Which conversations came back, and the room that they need."""

from router.decision import live_conversations
from router.decision.cache_ledger import BLOCK_TOKENS
from router.decision.live_conversations import IDLE_S, LiveConversations

HEAD = [b"system"]
OPENING = BLOCK_TOKENS - 1


def test_those_that_came_back_count_with_their_latest_length():
    now = 0.0
    live = LiveConversations(lambda: now)
    live.note([*HEAD, b"a"], OPENING, 1000)
    now = 1.0
    assert live.others([*HEAD, b"b"], OPENING) == 0, "it never came back"
    now = 2.0
    live.note([*HEAD, b"a", b"c"], OPENING, 1500)
    now = 1.0 + IDLE_S
    assert live.others([*HEAD, b"b"], OPENING) == 1500
    assert live.others([*HEAD, b"a"], OPENING) == 0, "its own"
    now = 3.0 + IDLE_S
    assert live.others([*HEAD, b"b"], OPENING) == 0, "it has ended"


def test_a_prompt_without_a_block_of_its_own_is_no_conversation():
    live = LiveConversations(lambda: 0.0)
    for _ in range(2):
        live.note(HEAD, OPENING, BLOCK_TOKENS)
    assert live.others([*HEAD, b"b"], OPENING) == 0


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(live_conversations, "MOST", 2)
    live = LiveConversations(lambda: 0.0)
    for name in (b"a", b"a", b"b", b"b", b"c", b"c"):
        live.note([*HEAD, name], OPENING, 100)
    assert live.others([*HEAD, b"d"], OPENING) == 200
