"""Prompts and drafts take turns in vLLM's real scheduler, without a model (see `simulated_engine`)."""

import asyncio

import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from speculator_service.vllm_backend.turns import PromptLimit, TimeSlices
from tests.engine.speculator_service.vllm_backend.simulated_speculator import SLOTS, simulated_speculators


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with simulated_speculators(tmp_path_factory.mktemp("llama")) as start:
        yield start


async def rounds_beside_a_prompt(engine, turns):
    """What the rounds read until a prompt of four chunks is read, and how much of it was read at the first round.

    Time is counted in tokens read.
    """
    await engine.score(ScoreRequest("s", np.arange(16, 116, dtype=np.int32), SelectionOptions(), keep_session=True))
    simulated = engine._engine
    simulated.scheduler.time_slices = turns(lambda: simulated.tokens_read)
    began = simulated.tokens_read
    prompt = np.random.default_rng(0).integers(16, 1016, 1000).astype(np.int32)
    reading = asyncio.create_task(engine.score(ScoreRequest("p", prompt, SelectionOptions(look_ahead=1))))
    while simulated.tokens_read == began:  # noqa: ASYNC110  a step lasts some turns of the loop
        await asyncio.sleep(0)
    ends = []

    async def draft():
        while not reading.done():
            await engine.draft("s", np.empty(0, np.int32), 4)
            ends.append(simulated.tokens_read - began)

    # Several sessions, so that one is always waiting.
    await asyncio.gather(*(draft() for _ in range(SLOTS - 1)))
    return simulated.tokens_read - began - prompt.size, ends[0]


async def test_a_draft_does_not_wait_for_a_prompt_nor_a_prompt_for_ever(start):
    engine = start()
    rounds, first = await rounds_beside_a_prompt(engine, TimeSlices)
    assert first < 3 * 256  # one chunk before the round, and one while its answer is sent
    # The rounds take as much time as the prompt.
    assert 0.5 * 1000 < rounds < 1.5 * 1000
    assert engine._engine.wrong_reads == engine._engine.referenced_blocks == 0
    engine.close()


async def test_control_without_turns_a_draft_waits_for_the_whole_prompt(start):
    class NoTurns(TimeSlices):
        def begin(self, **there):
            return False

    engine = start()
    rounds, first = await rounds_beside_a_prompt(engine, NoTurns)
    assert rounds <= SLOTS * 20  # one round each
    assert first >= 1000
    engine.close()


async def test_a_prompt_is_read_in_steps_that_the_limit_allows(start):
    class Short(PromptLimit):
        def tokens(self, most):
            return 64

    engine = start()
    simulated = engine._engine
    prompt = np.random.default_rng(0).integers(16, 1016, 1000).astype(np.int32)
    await engine.score(ScoreRequest("p", prompt, SelectionOptions(look_ahead=1)))
    steps = simulated.steps
    simulated.scheduler.prompt_limit = Short()
    await engine.score(ScoreRequest("q", prompt[::-1].copy(), SelectionOptions(look_ahead=1)))
    assert steps < 1000 / 64 <= simulated.steps - steps
    assert simulated.scheduler.max_num_scheduled_tokens > 64
    engine.close()
