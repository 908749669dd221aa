"""Scores by the question's own queries, against the oracle: chunks, the prefix cache, batches, groups of queries.

Prefill comes in chunks of 256 tokens.
"""

import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from speculator_service.vllm_backend import worker as scoring_worker
from speculator_service.vllm_backend.scheduler.question_rows import QuestionRowScheduler
from tests.engine.speculator_service.vllm_backend.conftest import EARLY_PROMPT, TOLERANCE
from tests.reference.models import random_prompt

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = SelectionOptions(score_queries="question")
BOTH = SelectionOptions(score_queries="both", look_ahead=3)


@pytest.fixture(scope="module")
def rig(llama_rig):
    return llama_rig


@pytest.mark.parametrize("options", [QUESTION, BOTH])
async def test_questions_everywhere_in_one_batch(rig, options):
    """At the start, at the end, of one token, split by the end of a chunk, longer than the limit, and unknown."""
    cases = [
        (random_prompt(300, seed=i), options, question)
        for i, question in enumerate([(0, 7), (290, 300), (150, 151), (250, 270), (100, 290), (299, 300), None])
    ]
    cases += [(random_prompt(700, seed=8), options, (400, 420)), ([20], options, (0, 1)), (random_prompt(9), options)]
    assert max(await rig.errors(cases)) <= TOLERANCE


@pytest.mark.parametrize("aggregation", ["max", "head_max_layer_mean"])
async def test_queries_are_scored_in_groups(rig, aggregation):
    def few_at_once(elements):
        def limit(worker):
            scoring_worker.TABLE_ELEMENTS = elements

        return limit

    case = random_prompt(300, seed=9), BOTH.model_copy(update={"aggregation": aggregation}), (260, 290)
    await rig.call(few_at_once(7 * 300))
    try:
        assert await rig.errors([case]) <= [TOLERANCE]
    finally:
        await rig.call(few_at_once(2**26))


async def test_an_end_stops_the_look_ahead_and_not_the_question(rig):
    options = SelectionOptions(score_queries="both", look_ahead=8)
    answer = await rig.score(EARLY_PROMPT, options, question=(70, 80))
    assert 3 <= len(answer.look_ahead_tokens) < 8
    assert rig.compare(EARLY_PROMPT, options, answer, (70, 80)) <= TOLERANCE


async def test_nothing_is_decoded_for_the_question(rig):
    prompt = random_prompt(200, seed=10)
    before = await rig.steps()
    answer = await rig.score(prompt, QUESTION, question=(180, 190))
    assert answer.look_ahead_tokens == []
    assert await rig.steps() - before == 1
    kept = await rig.keep("s", prompt, QUESTION)
    rig.check_greedy(kept, np.empty(0, np.int32), await rig.engine.draft("s", np.empty(0, np.int32), 4), 4)
    await rig.engine.close_session("s")


async def test_a_cached_question_is_computed_again(rig):
    """The same prompt twice, then a second turn whose question lies inside the first prompt and one after it."""
    first = random_prompt(300, seed=11)
    second = first + random_prompt(60, seed=12)
    block = rig.engine._engine.vllm_config.cache_config.block_size
    spared = []
    for case in (
        (first, QUESTION, (270, 280)),
        (first, QUESTION, (270, 280)),
        (second, QUESTION, (275, 300)),
        (second, QUESTION, (330, 350)),
        (second, BOTH, (40, 50)),
    ):
        before = (await rig.engine.worker_stats())[0]["cached_tokens"]
        assert await rig.errors([case]) <= [TOLERANCE]
        spared.append((await rig.engine.worker_stats())[0]["cached_tokens"] - before)
    assert spared == [end // block * block for end in (0, 270, 275, 330, 40)]


async def test_control_without_the_cap_a_cached_question_has_no_queries(rig, device):
    if device == "cuda":
        pytest.skip("the scheduler's class is replaced in the worker's process, which is the scheduler's on CPU")

    def without_cap(worker):
        worker._right = QuestionRowScheduler._get_local_prefix_cache_hit
        stock = super(QuestionRowScheduler, QuestionRowScheduler)._get_local_prefix_cache_hit
        QuestionRowScheduler._get_local_prefix_cache_hit = stock

    def as_before(worker):
        QuestionRowScheduler._get_local_prefix_cache_hit = worker._right

    case = random_prompt(300, seed=13), QUESTION, (270, 280)
    assert await rig.errors([case]) <= [TOLERANCE]
    await rig.call(without_cap)
    try:
        answer = await rig.score(*case[:2], question=case[2])
        assert np.isnan(answer.importance.numpy()).all()
    finally:
        await rig.call(as_before)
    assert await rig.errors([case]) <= [TOLERANCE]


async def test_control_a_row_sees_no_later_keys(rig):
    def blind(worker):
        worker._right = worker._scoring.fill
        worker._scoring.fill = lambda *args: worker._right(*args[:4])

    def as_before(worker):
        worker._scoring.fill = worker._right

    case = random_prompt(300, seed=14), QUESTION, (150, 160)
    await rig.call(blind)
    try:
        assert (await rig.errors([case]))[0] > 10 * TOLERANCE
    finally:
        await rig.call(as_before)
