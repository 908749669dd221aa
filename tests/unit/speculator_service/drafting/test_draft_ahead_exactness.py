"""With drafting ahead, sampled answers have exactly the target's distribution; negative controls fail the test."""

from typing import ClassVar

import numpy as np
import pytest

from speculator_service.drafting.draft_ahead import AheadDrafting
from speculator_service.drafting.drafter import DraftService
from tests.unit.speculator_service.drafting.draft_toys import (
    ToyEngine,
    ToyTarget,
    chi_square_p,
    decode,
    ids,
    sampled_from,
)

TARGET = [[0.5, 0.3, 0.2], [0.25, 0.45, 0.3], [0.3, 0.2, 0.5]]
DRAFTER = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.25, 0.15, 0.6]]


PLAIN = {"temperature": 1.0, "top_p": 1.0}
NUCLEUS = {"temperature": 0.7, "top_p": 0.8}


async def sample(engine, mode="chain", *, tokens=1200, sessions=6, seed=1, **sampling):
    """(answers, metrics) of `sessions` sampled answers; verification is sometimes faster than drafting ahead."""
    service = DraftService(engine, mode=mode, clock=lambda: 0.0)
    targets = [ToyTarget(f"s{i}", TARGET, seed * 100 + i, max_drafts=1, **sampling) for i in range(sessions)]
    for target in targets:
        engine.sessions.add(target.session)
        service.adopt(target.session, ids())
    patience = np.random.default_rng(seed)
    await decode(service, targets, tokens, lambda: int(patience.choice([0, 2, 5, 20])))
    metrics = service.metrics()
    await service.close()
    assert not engine.sessions
    assert not engine.overlaps
    return [t.answer for t in targets], metrics


BOTH = pytest.mark.parametrize(
    "sampling", [pytest.param(PLAIN, marks=pytest.mark.nightly), NUCLEUS], ids=["plain", "nucleus"]
)


@BOTH
async def test_the_answers_are_the_targets_own(sampling):
    answers, metrics = await sample(ToyEngine(DRAFTER, seed=3), **sampling)
    assert metrics["ahead_hits"] >= 0.3 * metrics["draft_requests"]
    assert metrics["ahead_misses"] > 0.05 * metrics["draft_requests"]
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **sampling)) > 0.01


async def test_another_temperature_or_top_p_is_found_out():
    """Negative control: the test separates these distributions, and a token outside top-p gives p = 0."""
    answers, _ = await sample(ToyEngine(DRAFTER, seed=3), **NUCLEUS)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), temperature=1.0, top_p=0.8)) < 1e-4
    answers, _ = await sample(ToyEngine(DRAFTER, seed=3), temperature=0.7)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **NUCLEUS)) == 0


async def test_without_drafting_ahead():
    answers, metrics = await sample(ToyEngine(DRAFTER, seed=3), "off")
    assert metrics["ahead_hits"] == metrics["ahead_misses"] == 0
    assert chi_square_p(answers, TARGET) > 0.01


@BOTH
async def test_a_wrong_q_is_found_out(sampling):
    class Liar(ToyEngine):
        """Reports a q that it did not sample from, when it drafts ahead."""

        ahead: ClassVar[set[str]] = set()

        async def draft(self, session, answer, count, *, temperature=0.0, top_m=0):
            ahead = session in self.ahead
            self.ahead.discard(session)
            drafted = await super().draft(session, answer, count, temperature=temperature, top_m=top_m)
            if not top_m:  # the next token, which the work ahead begins with
                self.ahead.add(session)
            elif ahead:
                drafted.q_probs[:] = 1 / 3
            return drafted

    answers, metrics = await sample(Liar(DRAFTER, seed=3), **sampling)
    assert metrics["ahead_hits"] >= 0.3 * metrics["draft_requests"]
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **sampling)) < 1e-4


async def test_choosing_by_the_drafts_is_found_out(monkeypatch):
    """Negative control: if hits are refused because of their drafts, the remaining drafts are no samples of q."""
    take = AheadDrafting.take

    async def biased(self, answer, ask):
        drafted = await take(self, answer, ask)
        return drafted if drafted is not None and drafted.tokens[0] == 0 else None

    monkeypatch.setattr(AheadDrafting, "take", biased)
    answers, metrics = await sample(ToyEngine(DRAFTER, seed=3))
    assert metrics["ahead_hits"] >= 0.1 * metrics["draft_requests"]
    assert chi_square_p(answers, TARGET) < 1e-4
