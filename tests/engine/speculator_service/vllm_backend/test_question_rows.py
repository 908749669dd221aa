"""Scores by the question's own queries, against the oracle: chunks, batches, the prefix cache.

Prefill comes in chunks of 256 tokens.
"""

import numpy as np
import pytest

from speculator_service.vllm_backend.scheduler import SpeculatorScheduler
from tests.engine.speculator_service.vllm_backend.by_heads import HEADS, error, errors, profile_of, scored_by
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

PROFILE = profile_of(((1, 0, 3.0), (4, 2, 2.0), (0, 1, 2.0)))


@pytest.fixture(scope="module")
def rig(llama_rig):
    return llama_rig


async def test_questions_everywhere_in_one_batch(rig):
    """At the start, at the end, of one token, split by the end of a chunk, longer than the limit, and unknown."""
    cases = [
        (random_prompt(300, seed=i), question)
        for i, question in enumerate([(0, 7), (290, 300), (150, 151), (250, 270), (100, 290), (299, 300), None])
    ]
    cases += [(random_prompt(700, seed=8), (400, 420)), ([20], (0, 1)), (random_prompt(9), None)]
    assert max(await errors(rig, cases, PROFILE)) <= TOLERANCE


async def test_a_session_follows_a_prompt_that_heads_score(rig):
    with scored_by(rig, PROFILE):
        kept = await rig.keep("s", random_prompt(200, seed=10), HEADS)
    rig.check_greedy(kept, np.empty(0, np.int32), await rig.engine.draft("s", np.empty(0, np.int32), 4), 4)
    await rig.engine.close_session("s")


async def test_a_cached_question_is_computed_again(rig):
    """The same prompt twice, then a second turn whose question lies inside the first prompt and one after it."""
    first = random_prompt(300, seed=11)
    second = first + random_prompt(60, seed=12)
    block = rig.engine._engine.vllm_config.cache_config.block_size
    cached = []
    for token_ids, question in (
        (first, (270, 280)),
        (first, (270, 280)),
        (second, (275, 300)),
        (second, (330, 350)),
        (second, (40, 50)),
    ):
        assert await error(rig, token_ids, question, PROFILE) <= TOLERANCE
        cached += rig.cached
    assert cached == [end // block * block for end in (0, 270, 275, 330, 40)]


async def test_control_without_the_cap_a_cached_question_has_no_queries(rig, device):
    if device == "cuda":
        pytest.skip("the scheduler's class is replaced in the worker's process, which is the scheduler's on CPU")

    def without_cap(worker):
        worker._right = SpeculatorScheduler._get_local_prefix_cache_hit
        stock = super(SpeculatorScheduler, SpeculatorScheduler)._get_local_prefix_cache_hit
        SpeculatorScheduler._get_local_prefix_cache_hit = stock

    def as_before(worker):
        SpeculatorScheduler._get_local_prefix_cache_hit = worker._right

    case = random_prompt(300, seed=13), (270, 280), PROFILE
    assert await error(rig, *case) <= TOLERANCE
    await rig.call(without_cap)
    try:
        assert np.isnan(await error(rig, *case))
    finally:
        await rig.call(as_before)
    assert await error(rig, *case) <= TOLERANCE
