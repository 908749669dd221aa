"""A step with prompts is as long as drafts can wait, while there are drafts."""

import pytest

from speculator_service.vllm_backend.turns import (
    ALIVE_S,
    FEWEST_TOKENS,
    LONGEST_STEP_S,
    PromptLimit,
)

MOST = 16384
SPEED = 40_000
"""Prompt tokens per second of the simulated engine."""


class Engine:
    """A clock and an engine that reads SPEED tokens per second."""

    def __init__(self, speed=SPEED):
        self.now, self.speed = 0.0, speed
        self.limit = PromptLimit(lambda: self.now)

    def step(self, *, drafts=False, prompts=True):
        """One step with as many tokens as allowed; returns their number."""
        self.limit.begin(drafts=drafts, prompts=prompts)
        tokens = self.limit.tokens(MOST)
        self.limit.scheduled(tokens)
        self.now += tokens / self.speed
        return tokens


def test_without_drafts_steps_are_full():
    engine = Engine()
    assert [engine.step() for _ in range(5)] == [MOST] * 5


def test_beside_drafts_a_step_takes_a_quarter_of_the_deadline():
    engine = Engine()
    engine.step()
    assert engine.step(drafts=True) == pytest.approx(SPEED * LONGEST_STEP_S, abs=1)
    # Also between two rounds of the session.
    assert engine.step() < MOST


def test_the_limit_ends_some_time_after_the_last_round():
    engine = Engine()
    engine.step()
    engine.step(drafts=True)
    engine.now += ALIVE_S + 0.1
    assert engine.limit.tokens(MOST) == MOST


def test_a_slow_engine_still_reads_some_tokens():
    engine = Engine(speed=700)
    engine.step()
    assert engine.step(drafts=True) == FEWEST_TOKENS


def test_it_follows_an_engine_that_becomes_slower():
    engine = Engine()
    engine.step()
    engine.speed = SPEED / 4
    for _ in range(30):
        tokens = engine.step(drafts=True)
    assert tokens == pytest.approx(engine.speed * LONGEST_STEP_S, rel=0.01)


def test_the_time_of_an_idle_engine_is_not_that_of_a_step():
    engine = Engine()
    engine.step()
    engine.now += 60
    engine.step(prompts=False)
    engine.step()
    assert engine.step(drafts=True) == pytest.approx(SPEED * LONGEST_STEP_S, abs=1)
