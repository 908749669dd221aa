"""How likely a prompt has a next turn: each client's own share, from that of all clients, within bounds."""

import pytest

from router.decision import next_turns
from router.decision.catch_up import LIKELY
from router.decision.next_turns import REST_S, NextTurns


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def turns(clock):
    return NextTurns(clock)


def block(number):
    return number.to_bytes(4, "big")


class Client:
    """Sends prompts, each of which rests as long as it takes until the next."""

    numbers = iter(range(1_000_000))

    def __init__(self, turns, clock, name, shape):
        self.turns, self.clock, self.who = turns, clock, (name, shape)

    def sends(self, prompts, *, comes_back, after=1.0):
        for mark in [block(next(self.numbers)) for _ in range(prompts)]:
            self.turns.answered(self.who, mark)
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
        turns.answered(("agents", "tools"), mark)
    assert turns.share(("agents", "tools")) == 1.0
    clock.now = REST_S + 1
    assert turns.share(("agents", "tools")) < LIKELY


def test_who_comes_back_late_still_counts_as_likely(turns, clock):
    client = Client(turns, clock, "person", "chat").sends(20, comes_back=True, after=2 * REST_S)
    assert LIKELY < client.share < 0.6


def test_a_prompt_has_one_next_turn(turns):
    turns.answered(("a", "chat"), b"mark")
    turns.arrived([b"mark"])
    once = turns.share(("a", "chat"))
    turns.arrived([b"mark"])
    assert turns.share(("a", "chat")) == once > 0


def test_another_prompt_is_no_next_turn(turns):
    """The negative control."""
    turns.answered(("a", "chat"), b"mark")
    turns.arrived([b"head", b"other"])
    turns.arrived([])
    assert turns.share(("a", "chat")) == 0


def test_clients_and_prompts_are_bounded_in_number(clock, monkeypatch):
    monkeypatch.setattr(next_turns, "CLIENTS", 8)
    monkeypatch.setattr(next_turns, "PROMPTS", 8)
    turns = NextTurns(clock)
    for number in range(100):
        Client(turns, clock, f"client {number}", "chat").sends(1, comes_back=number % 2)
    for number in range(100):
        turns.answered(("a", "chat"), block(number))
    sizes = [len(held) for held in vars(turns).values() if hasattr(held, "__len__")]
    assert sizes
    assert max(sizes) <= 8
