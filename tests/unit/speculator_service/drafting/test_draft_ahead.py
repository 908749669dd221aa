"""Drafting ahead: when it is on, what is predicted, and when the target's answer is a hit."""

import asyncio

import numpy as np
import pytest

from skim_common.errors import EngineUnavailableError
from speculator_service.drafting.budget import PROBE_ROUNDS, STEADY_ROUNDS, AheadBudget
from speculator_service.drafting.draft_ahead import AheadDrafting, DraftParams
from speculator_service.engine import Drafted
from tests.unit.speculator_service.drafting.draft_toys import ToyEngine, ids

TABLE = np.random.default_rng(0).dirichlet(np.ones(8), size=8)
GREEDY = DraftParams(3, 0.0, 0)


def rounds(budget, count, ms):
    """Time `count` rounds of ms(ahead) milliseconds each. Returns how many rounds were drafted ahead."""
    ahead = []
    for _ in range(count):
        ahead.append(budget.on)
        budget.timed(ms(budget.on), ahead=budget.on)
    return sum(ahead)


def test_off_when_it_does_not_pay_and_on_again_when_it_does():
    budget, cycle = AheadBudget(), STEADY_ROUNDS + PROBE_ROUNDS
    assert rounds(budget, 2 * PROBE_ROUNDS + cycle, lambda ahead: 3 if ahead else 8) == PROBE_ROUNDS + STEADY_ROUNDS
    # Drafting ahead now costs the other rows more time than its hits save.
    rounds(budget, 2 * cycle, lambda ahead: 12 if ahead else 8)
    assert not budget.pays
    assert rounds(budget, cycle, lambda ahead: 12 if ahead else 8) == PROBE_ROUNDS
    # Probes continue; after enough of them, drafting ahead is found to pay again.
    rounds(budget, 10 * cycle, lambda ahead: 3 if ahead else 8)
    assert budget.pays
    assert rounds(budget, cycle, lambda ahead: 3 if ahead else 8) == STEADY_ROUNDS


SENT = (2, 3)


class Ahead(ToyEngine):
    """Its next token after the answer [1, *SENT] is 4."""

    def next(self, answer, count, temperature, top_m):
        if answer.tolist() == [1, *SENT]:
            return Drafted(ids(4))
        return super().next(answer, count, temperature, top_m)


HIT = ids(1, *SENT, 4)


def ahead(engine, *, params=GREEDY):
    engine.sessions.add("s")
    return AheadDrafting(engine, "s", ids(1), ids(*SENT), params)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_hit_continues_exactly_the_targets_answer():
    engine = Ahead(TABLE)
    work = ahead(engine)
    await settle()
    assert [answer for _, answer in engine.drafted] == [[1, *SENT], HIT.tolist()]
    drafted = await work.take(HIT, GREEDY)
    assert drafted.tokens.tolist() == engine.next(HIT, 3, 0, 0).tokens.tolist()


@pytest.mark.parametrize("answer", [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 3, 5), (1, 2, 3, 4, 5), (2, 3, 4), ()])
async def test_any_other_answer_is_a_miss(answer):
    work = ahead(Ahead(TABLE))
    await settle()
    assert await work.take(ids(*answer), GREEDY) is None


async def test_other_parameters_are_a_miss_and_a_smaller_count_is_a_shorter_hit():
    for params in (DraftParams(3, 1.0, 8), DraftParams(0, 0.0, 0)):
        work = ahead(Ahead(TABLE))
        await settle()
        assert await work.take(HIT, params) is None
    sampled = ahead(Ahead(TABLE), params=DraftParams(3, 1.0, 8))
    await settle()
    drafted = await sampled.take(HIT, DraftParams(2, 1.0, 8))
    assert (drafted.tokens.size, drafted.q_ids.size, drafted.q_probs.size) == (2, 16, 16)
    assert drafted.q_probs.reshape(2, 8).sum(1) == pytest.approx(1.0)


async def test_a_miss_stops_the_work_and_a_hit_waits_for_it():
    engine = Ahead(TABLE, steps=10**9)
    work = ahead(engine)
    await settle()
    assert await work.take(ids(1, 7), GREEDY) is None
    assert not engine._busy
    engine.steps = 5
    work = ahead(engine)
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(engine.drafted) == 3
    assert engine._busy
    assert (await work.take(HIT, GREEDY)).tokens.size == 3


@pytest.mark.parametrize("error", [EngineUnavailableError("down"), RuntimeError("a bug")])
async def test_an_engine_that_fails_is_a_miss(error):
    class Failing(Ahead):
        async def draft(self, session, answer, *args, **options):
            if answer.size == HIT.size:
                raise error
            return await super().draft(session, answer, *args, **options)

    work = ahead(Failing(TABLE))
    await settle()
    assert await work.take(HIT, GREEDY) is None


async def test_nothing_is_drafted_ahead_of_the_last_position():
    class Full(Ahead):
        def next(self, *args):
            return Drafted(ids())

    engine = Full(TABLE)
    work = ahead(engine)
    await settle()
    assert len(engine.drafted) == 1
    assert await work.take(ids(1, *SENT), GREEDY) is None
