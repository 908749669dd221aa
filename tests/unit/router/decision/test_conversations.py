"""How likely a prompt has a next turn, by each client's own share, and which conversations live."""

import pytest

from router.decision import conversations
from router.decision.catch_up import LIKELY
from router.decision.conversations import IDLE_S, REST_S, Conversations
from router.decision.ledger import BLOCK_TOKENS


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def turns(clock):
    return Conversations(clock)


def block(number):
    return number.to_bytes(4, "big")


def answered(turns, client, mark):
    """A prompt with this one block has its answer."""
    turns.answered(client, [mark], 0, 100, rests=True)


class Client:
    """Sends prompts, each of which rests as long as it takes until the next."""

    numbers = iter(range(1_000_000))

    def __init__(self, turns, clock, name, shape):
        self.turns, self.clock, self.who = turns, clock, (name, shape)

    def sends(self, prompts, *, comes_back, after=1.0):
        for mark in [block(next(self.numbers)) for _ in range(prompts)]:
            answered(self.turns, self.who, mark)
            self.clock.now += after
            if comes_back:
                self.turns.arrived([b"head", mark, b"new"])
        self.clock.now += REST_S
        return self

    @property
    def share(self):
        return self.turns.share(self.who)


@pytest.mark.parametrize(("shape", "share"), [("tools", 1.0), ("turns", 1.0), ("chat", 0.0), ("text", 0.0)])
def test_what_is_assumed_before_the_first_prompt(turns, shape, share):
    assert turns.share(("anyone", shape)) == share


def test_each_client_and_shape_has_its_own_share(turns, clock):
    chat, batch, other = (Client(turns, clock, *who) for who in (("a", "chat"), ("b", "chat"), ("b", "tools")))
    for _ in range(10):
        chat.sends(1, comes_back=True)
        batch.sends(1, comes_back=False)
    assert chat.share > 0.7
    assert batch.share < LIKELY
    assert other.share == 1.0


def test_a_new_client_is_like_all_others_until_its_own_prompts_count(turns, clock):
    Client(turns, clock, "a", "tools").sends(40, comes_back=False)
    new = Client(turns, clock, "new", "tools")
    assert new.share < LIKELY
    assert new.sends(20, comes_back=True).share > LIKELY


def test_a_client_that_changes_is_believed(turns, clock):
    client = Client(turns, clock, "a", "chat").sends(50, comes_back=False)
    assert client.share < 0.05
    assert client.sends(30, comes_back=True).share > LIKELY


def test_prompts_at_rest_do_not_count_yet(turns, clock):
    """Many sessions that begin together are not taken for many that never come back."""
    marks = [block(number) for number in range(100)]
    for mark in marks:
        answered(turns, ("agents", "tools"), mark)
    assert turns.share(("agents", "tools")) == 1.0
    clock.now = REST_S + 1
    assert turns.share(("agents", "tools")) < LIKELY


def test_who_comes_back_late_still_counts_as_likely(turns, clock):
    client = Client(turns, clock, "person", "chat").sends(20, comes_back=True, after=2 * REST_S)
    assert LIKELY < client.share < 0.6


def test_a_prompt_has_one_next_turn(turns):
    answered(turns, ("a", "chat"), b"mark")
    turns.arrived([b"mark"])
    once = turns.share(("a", "chat"))
    turns.arrived([b"mark"])
    assert turns.share(("a", "chat")) == once > 0


def test_another_prompt_is_no_next_turn(turns):
    """The negative control."""
    answered(turns, ("a", "chat"), b"mark")
    turns.arrived([b"head", b"other"])
    turns.arrived([])
    assert turns.share(("a", "chat")) == 0


def test_clients_and_prompts_are_bounded_in_number(clock, monkeypatch):
    monkeypatch.setattr(conversations, "CLIENTS", 8)
    monkeypatch.setattr(conversations, "PROMPTS", 8)
    monkeypatch.setattr(conversations, "CONVERSATIONS", 8)
    turns = Conversations(clock)
    for number in range(100):
        Client(turns, clock, f"client {number}", "chat").sends(1, comes_back=number % 2)
    for number in range(100):
        answered(turns, ("a", "chat"), block(number))
    sizes = [len(held) for held in vars(turns).values() if hasattr(held, "__len__")]
    assert sizes
    assert max(sizes) <= 8


HEAD = [b"system"]
OPENING = BLOCK_TOKENS - 1


def test_those_that_came_back_count_with_their_latest_length():
    now = 0.0
    live = Conversations(lambda: now)
    live.answered(("a", "chat"), [*HEAD, b"a"], OPENING, 1000, rests=False)
    now = 1.0
    assert live.others([*HEAD, b"b"], OPENING) == 0, "it never came back"
    now = 2.0
    live.answered(("a", "chat"), [*HEAD, b"a", b"c"], OPENING, 1500, rests=False)
    now = 1.0 + IDLE_S
    assert live.others([*HEAD, b"b"], OPENING) == 1500
    assert live.others([*HEAD, b"a"], OPENING) == 0, "its own"
    now = 3.0 + IDLE_S
    assert live.others([*HEAD, b"b"], OPENING) == 0, "it has ended"


def test_a_prompt_without_a_block_of_its_own_is_no_conversation():
    live = Conversations(lambda: 0.0)
    for _ in range(2):
        live.answered(("a", "chat"), HEAD, OPENING, BLOCK_TOKENS, rests=False)
    assert live.others([*HEAD, b"b"], OPENING) == 0


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(conversations, "CONVERSATIONS", 2)
    live = Conversations(lambda: 0.0)
    for name in (b"a", b"a", b"b", b"b", b"c", b"c"):
        live.answered(("a", "chat"), [*HEAD, name], OPENING, 100, rests=False)
    assert live.others([*HEAD, b"d"], OPENING) == 200
