"""Sampled answers with drafts have exactly the target's distribution; negative controls fail the test."""

import numpy as np
import pytest

from speculator_service.drafting import DraftService
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


async def sample(engine, *, tokens=1200, sessions=6, seed=1, **sampling):
    """The sampled answers of `sessions` sessions."""
    service = DraftService(engine, clock=lambda: 0.0)
    targets = [ToyTarget(f"s{i}", TARGET, seed * 100 + i, max_drafts=1, **sampling) for i in range(sessions)]
    for target in targets:
        engine.sessions.add(target.session)
        service.adopt(target.session, ids())
    await decode(service, targets, tokens)
    await service.close()
    assert not engine.sessions
    assert not engine.overlaps
    return [t.answer for t in targets]


BOTH = pytest.mark.parametrize(
    "sampling", [pytest.param(PLAIN, marks=pytest.mark.nightly), NUCLEUS], ids=["plain", "nucleus"]
)


@BOTH
async def test_the_answers_are_the_targets_own(sampling):
    answers = await sample(ToyEngine(DRAFTER, seed=3), **sampling)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **sampling)) > 0.01


async def test_another_temperature_or_top_p_is_found_out():
    """Negative control: the test separates these distributions, and a token outside top-p gives p = 0."""
    answers = await sample(ToyEngine(DRAFTER, seed=3), **NUCLEUS)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), temperature=1.4, top_p=0.8)) < 1e-4
    answers = await sample(ToyEngine(DRAFTER, seed=3), temperature=0.7)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **NUCLEUS)) == 0


@BOTH
async def test_a_wrong_q_is_found_out(sampling):
    class Liar(ToyEngine):
        """Reports a q that it did not sample from."""

        async def draft(self, session, answer, count, *, temperature=0.0, top_m=0):
            drafted = await super().draft(session, answer, count, temperature=temperature, top_m=top_m)
            drafted.q_probs[:] = 1 / 3
            return drafted

    answers = await sample(Liar(DRAFTER, seed=3), **sampling)
    assert chi_square_p(answers, sampled_from(np.array(TARGET), **sampling)) < 1e-4
