"""What later turns cost enters the choice of the mode of a conversation's first turn."""

import numpy as np
import pytest

from kv_transfer.options import SHORT_TEXT
from router.decision.conversations import MOST_TURNS, LaterTurns
from router.decision.pool_time import PoolTime
from tests.unit.router.simulated_pools import BLOCK, LATE, OPTIONS, Pool, World, text

NEW = 40


class Conversing(World):
    """Pools of a real pair: the speculator's time is a large part of the target's."""

    def __init__(self, noise=0.0, speculator_per_token=1.2):
        pools = {"speculator": Pool(200, speculator_per_token, noise), "target": Pool(190, 2.0, noise)}
        super().__init__(extends=True, **pools)

    def look(self, ids, told=None):
        """The forecast of a prompt of which the client tells how many later requests it has."""
        return self.forecaster.look(np.array(ids, np.int32), None, OPTIONS, later_requests=told)

    def turns_expected(self):
        return self.forecaster.turns.expected

    def converse(self, name, turns, mode=None):
        """The modes of a conversation, and the sum of its times to first token over that of a dense one."""
        history, modes, dense = text(f"document {name}", 2600), [], 0.0
        self.took = []
        for turn in range(turns):
            dense += self.target.fixed + self.target.per_token * (len(history) if turn == 0 else NEW)
            modes.append(self.run(history, [], mode)[1])
            self.before = history
            history = history + text(f"{name} {turn}", NEW)
        return modes, sum(self.took) / dense


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_conversations_of_a_near_tie_run_dense(noise, monkeypatch):
    """The first token would be sooner speculative; each later turn would cost twice as much as a dense one."""
    world = Conversing(noise)
    world.converse("first", 4)
    world.converse("second", 4)
    for i in range(10):
        modes, ratio = world.converse(i, 4)
        assert modes == ["dense"] * 4
        assert ratio <= 1.05
    assert world.run(text("alone", 2600), [])[0] == "later-turns"
    # Negative control: without the price of later turns.
    monkeypatch.setattr(LaterTurns, "extra_ms", lambda *args: 0.0)
    blind = Conversing(noise)
    found = [blind.converse(i, 4) for i in range(6)][2:]
    assert all(modes[0] == "speculative" and ratio > 1.05 for modes, ratio in found)


def test_later_requests_that_the_client_tells_make_a_prompt_dense():
    """The router has seen no later turn. A few later requests cost less than the first token gains; many do not."""
    world = Conversing(speculator_per_token=0.6)
    world.learn()
    reasons = [world.look(text("alone", 2600), told).choice for told in (None, 0, 1, 20)]
    assert [decision.speculative for decision in reasons] == [True, True, True, False]
    assert reasons[-1].reason == "later-turns"


def test_what_the_client_tells_replaces_what_is_expected():
    world = Conversing()
    world.converse("first", 4)
    world.converse("second", 4)
    assert world.turns_expected() > 1
    found = [world.look(text("alone", 2600), told).choice for told in (None, 0)]
    assert [(decision.speculative, decision.reason) for decision in found] == [(False, "later-turns"), (True, "sooner")]


def test_a_conversation_that_began_speculative_becomes_dense_for_many_later_requests():
    world = Conversing(speculator_per_token=0.6)
    world.learn()
    world.converse("long", 2, "speculative")
    turn = world.before + text("more", NEW)
    assert [world.look(turn, told).choice.speculative for told in (None, 2, 500)] == [True, True, False]


def test_before_anything_is_measured_later_requests_are_counted_in_tokens():
    world = Conversing()
    first = [world.look(text("alone", 2600), told).choice for told in (None, 0, 2, 100)]
    assert [(decision.speculative, decision.reason) for decision in first] == [
        (True, "unmeasured"), (True, "unmeasured"), (True, "unmeasured"), (False, "later-turns")
    ]  # fmt: skip
    # A longer prompt gains more by a selection.
    assert world.look(text("alone", 26_000), 40).choice.speculative


def test_prompts_without_later_turns_run_speculative():
    world = Conversing()
    for i in range(10):
        assert world.converse(i, 1)[0] == ["speculative"]


def test_a_large_gain_is_worth_its_later_turns():
    world = Conversing(speculator_per_token=0.1)
    for i in range(6):
        assert world.converse(i, 4)[0] == ["speculative"] * 4


def test_what_a_later_turn_reads_is_learned():
    world = Conversing()
    world.converse("first", 6, "speculative")
    turns = world.forecaster.turns
    assert turns.kept(NEW, 0.2) == pytest.approx(NEW + LATE, abs=BLOCK)
    assert turns.kept(10 * SHORT_TEXT, 0.2) < 0.3 * turns.kept(SHORT_TEXT, 0.2) * 10


def test_the_expected_number_of_later_turns():
    turns = LaterTurns()
    assert turns.expected == turns.extra_ms(lambda new: None, PoolTime(lambda: 0.0), 3000, 600, 0.2) == 0
    for _ in range(200):
        turns.began(3000, 100)
        for _ in range(3):
            turns.began(3000, 2900)
    assert turns.expected == pytest.approx(3, rel=0.1)
    for _ in range(100):
        turns.began(3000, 2900)
    assert turns.expected == MOST_TURNS
