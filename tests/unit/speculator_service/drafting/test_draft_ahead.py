"""Drafting ahead: which branches are predicted, how many are drafted, and when the target's answer is a hit."""

import asyncio

import numpy as np
import pytest

from skim_common.errors import EngineUnavailableError
from speculator_service.drafting.budget import (
    MIN_PROBABILITY,
    PROBE_ROUNDS,
    STEADY_ROUNDS,
    AheadBudget,
    SessionAcceptance,
)
from speculator_service.drafting.draft_ahead import AheadDrafting, Branch, DraftParams, predict_branches, predict_chain
from speculator_service.engine import Drafted, supports_branches
from tests.unit.speculator_service.drafting.draft_toys import ToyEngine, ids

TABLE = np.random.default_rng(0).dirichlet(np.ones(8), size=8)
GREEDY = DraftParams(3, 0.0, 0)


def test_the_probabilities_of_all_branches_add_up():
    """With all tokens as alternatives, the branches cover every possible answer exactly once."""
    engine = ToyEngine(TABLE)
    sent = engine.next(ids(1), 3, 1.0, 8, alternatives=8)
    bonus = engine.next(np.append(ids(1), sent.tokens), 1, 0.0, 0, alternatives=8)
    branches = predict_branches(sent, bonus, 0.7)
    assert len({b.tokens for b in branches}) == len(branches) == 3 * 7 + 8
    assert sum(b.probability for b in branches) == pytest.approx(1.0, abs=1e-5)
    assert [b.probability for b in branches] == sorted((b.probability for b in branches), reverse=True)
    by_tokens = {b.tokens: b.probability for b in branches}
    drafts = tuple(sent.tokens.tolist())
    other = (drafts[1] + 1) % 8
    p = TABLE[drafts[0]]
    assert by_tokens[(drafts[0], other)] == pytest.approx(0.7 * 0.3 * p[other] / (1 - p[drafts[1]]), abs=1e-5)
    assert by_tokens[(*drafts, 4)] == pytest.approx(0.7**3 * TABLE[drafts[-1]][4], abs=1e-5)
    assert (*drafts[:1], drafts[1]) not in by_tokens


def test_branches_without_alternatives_are_the_bonus_tokens():
    bonus = Drafted(ids(5), alternative_ids=ids(5, 6), alternative_probs=np.array([0.8, 0.1], np.float32))
    branches = predict_branches(Drafted(ids(1, 2)), bonus, 0.5)
    assert [b.tokens for b in branches] == [(1, 2, 5), (1, 2, 6)]


def test_a_chain_is_all_drafts_and_the_drafters_next_token():
    assert [b.tokens for b in predict_chain(ids(1, 2), Drafted(ids(5)))] == [(1, 2, 5)]
    assert predict_chain(ids(1, 2), Drafted(ids())) == []


def test_acceptance_follows_the_target():
    acceptance = SessionAcceptance()
    for _ in range(200):
        acceptance.add(1, 4)
    assert acceptance.rate == pytest.approx(0.5)
    for _ in range(200):
        acceptance.add(4, 4)
    assert acceptance.rate == pytest.approx(1.0)
    acceptance.add(0, 0)
    assert acceptance.rate == pytest.approx(1.0)


def branches(*probabilities):
    return [Branch((i,), p) for i, p in enumerate(probabilities)]


def test_fewer_branches_when_many_rows_share_the_drafter():
    budget, many = AheadBudget(32), branches(*[0.05] * 20)
    assert [len(budget.choose(many, rows)) for rows in (0, 1, 4, 16, 100)] == [20, 20, 8, 2, 1]


def test_unlikely_branches_are_dropped_as_hits_fall_short():
    budget, some = AheadBudget(32), branches(0.5, 0.1, 2 * MIN_PROBABILITY, MIN_PROBABILITY / 2)
    assert len(budget.choose(some, 1)) == 3
    for _ in range(1000):
        budget.resolved(some, hit=False)
    assert len(budget.choose(some, 1)) == 1
    for _ in range(1000):
        budget.resolved(some, hit=True)
    assert len(budget.choose(some, 1)) == 3


def rounds(budget, count, ms):
    """Time `count` rounds of ms(ahead) milliseconds each. Returns how many rounds were drafted ahead."""
    ahead = []
    for _ in range(count):
        ahead.append(budget.on)
        budget.timed(ms(budget.on), ahead=budget.on)
    return sum(ahead)


def test_off_when_it_does_not_pay_and_on_again_when_it_does():
    budget, cycle = AheadBudget(32), STEADY_ROUNDS + PROBE_ROUNDS
    assert rounds(budget, 2 * PROBE_ROUNDS + cycle, lambda ahead: 3 if ahead else 8) == PROBE_ROUNDS + STEADY_ROUNDS
    # Drafting ahead now costs the other rows more time than its hits save.
    rounds(budget, 2 * cycle, lambda ahead: 12 if ahead else 8)
    assert not budget.pays
    assert rounds(budget, cycle, lambda ahead: 12 if ahead else 8) == PROBE_ROUNDS
    # Probes continue; after enough of them, drafting ahead is found to pay again.
    rounds(budget, 10 * cycle, lambda ahead: 3 if ahead else 8)
    assert budget.pays
    assert rounds(budget, cycle, lambda ahead: 3 if ahead else 8) == STEADY_ROUNDS


def ahead(engine, *, answer=(1,), sent=(2, 3), branches=((2, 3, 4), (2, 5)), params=GREEDY):
    engine.sessions.add("s")
    return AheadDrafting(
        engine, "s", ids(*answer), Drafted(ids(*sent)), params, lambda _: [Branch(t, 0.5) for t in branches]
    )


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("added", [(2, 3, 4), (2, 5)])
async def test_a_hit_continues_exactly_the_targets_answer(added):
    engine = ToyEngine(TABLE)
    work = ahead(engine)
    await settle()
    drafted = await work.take(ids(1, *added), GREEDY)
    assert drafted.tokens.tolist() == engine.next(ids(1, *added), 3, 0, 0).tokens.tolist()
    assert drafted.alternative_ids.size == 3 * 4


@pytest.mark.parametrize("answer", [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 3, 4, 5), (0, 2, 5), (2, 5), ()])
async def test_any_other_answer_is_a_miss(answer):
    work = ahead(ToyEngine(TABLE))
    await settle()
    assert await work.take(ids(*answer), GREEDY) is None


async def test_other_parameters_are_a_miss_and_a_smaller_count_is_a_shorter_hit():
    for params in (DraftParams(3, 1.0, 8), DraftParams(0, 0.0, 0)):
        work = ahead(ToyEngine(TABLE))
        await settle()
        assert await work.take(ids(1, 2, 5), params) is None
    sampled = ahead(ToyEngine(TABLE), params=DraftParams(3, 1.0, 8))
    await settle()
    drafted = await sampled.take(ids(1, 2, 5), DraftParams(2, 1.0, 8))
    assert (drafted.tokens.size, drafted.q_ids.size, drafted.q_probs.size, drafted.alternative_ids.size) == (
        2,
        16,
        16,
        8,
    )
    assert drafted.q_probs.reshape(2, 8).sum(1) == pytest.approx(1.0)


async def test_a_miss_stops_the_work_and_a_hit_waits_for_it():
    engine = ToyEngine(TABLE, steps=10**9)
    work = ahead(engine)
    await settle()
    assert await work.take(ids(1, 7), GREEDY) is None
    assert not engine._busy
    engine.steps = 5
    work = ahead(engine)
    for _ in range(9):
        await asyncio.sleep(0)
    assert engine.calls["draft_many"] == 1
    assert engine._busy
    assert (await work.take(ids(1, 2, 5), GREEDY)).tokens.size == 3


@pytest.mark.parametrize("error", [EngineUnavailableError("down"), RuntimeError("a bug")])
async def test_an_engine_that_fails_is_a_miss(error):
    class Failing(ToyEngine):
        async def draft_many(self, *args, **options):
            raise error

    work = ahead(Failing(TABLE))
    await settle()
    assert await work.take(ids(1, 2, 5), GREEDY) is None


async def test_an_engine_without_branches_drafts_one_chain():
    engine = ToyEngine(TABLE, branching=False)
    assert not supports_branches(engine)
    work = ahead(engine, branches=[(2, 3, 4)])
    await settle()
    assert [answer for _, answer in engine.drafted] == [[1, 2, 3], [1, 2, 3, 4]]
    assert (await work.take(ids(1, 2, 3, 4), GREEDY)).tokens.size == 3
