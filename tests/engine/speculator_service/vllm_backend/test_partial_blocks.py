"""Partial KV blocks of sessions, with vLLM's real scheduler and without a model (see `simulated_engine`)."""

import asyncio

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from tests.engine.speculator_service.vllm_backend.simulated_engine import continuation
from tests.engine.speculator_service.vllm_backend.simulated_speculator import BLOCK, simulated_speculators
from vllm_hooks import partial_blocks


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with simulated_speculators(tmp_path_factory.mktemp("llama")) as start:
        yield start


async def test_a_part_of_a_whole_block_is_found(start):
    """The same prompt again; a prompt that differs inside a block. Negative control: nothing is remembered."""
    engine, prompt = start(), np.random.default_rng(3).integers(16, 1016, 150).astype(np.int32)

    async def read(ids):
        before = engine._engine.tokens_read
        await engine.score(ScoreRequest("s", ids, SelectionOptions(look_ahead=40)))
        return engine._engine.tokens_read - before - 40  # the look-ahead tokens fill the block of the prompt's end

    other = np.concatenate([prompt[:90], prompt[:30]])
    assert [await read(ids) for ids in (prompt, prompt, other)] == [150, 1, 30]
    engine._engine.scheduler._whole_blocks.clear()
    engine._engine.scheduler._partial_blocks.clear()
    assert [await read(ids) for ids in (prompt, other)] == [150 % BLOCK, 120 % BLOCK]
    assert engine._engine.wrong_reads == 0
    engine.close()


EQUAL = np.arange(16, 66, dtype=np.int32)
"""Tokens that several kept prompts have: a whole block and a partial one."""


async def read_kept(engine, name, positions, context_length):
    """Open a session over EQUAL at these positions and draft. Returns the number of tokens that were read."""
    simulated, prompt = engine._engine, KeptPrompt(EQUAL[: positions.size], positions.astype(np.int32), context_length)
    before = simulated.tokens_read
    await engine.open_session(name, prompt)
    drafted = await engine.draft(name, np.empty(0, np.int32), 4)
    session = engine._sessions.get(name)
    expected = continuation(prompt.token_ids.tolist(), 4, session.cache_salt, session.extra_args)
    return simulated.tokens_read - before, drafted.tokens.tolist() == expected


CASES = [
    pytest.param(np.arange(20) * 2, np.arange(20) * 3, id="no whole block"),
    pytest.param(np.arange(50), np.arange(50) + 10 * (np.arange(50) >= 40), id="the same whole block"),
    pytest.param(np.r_[60:100, 0:10], np.r_[60:100, 0:5, 20:25], id="in another order"),
]


@pytest.mark.parametrize(("one", "other"), CASES)
async def test_partial_blocks_of_other_positions_are_not_shared(start, one, other):
    """Only slots with equal positions are found: up to the first difference, or all for the same positions."""
    engine, size = start(), one.size
    same = int(np.argmax(one != other))
    assert await read_kept(engine, "one", one, 200) == (size + 4, True)  # the last token is read again
    assert await read_kept(engine, "other", other, 200) == (size - same + 4, True)
    assert await read_kept(engine, "again", one, 200) == (1 + 4, True)
    assert engine._engine.wrong_reads == engine._engine.referenced_blocks == 0
    engine.close()


@pytest.mark.parametrize(("one", "other"), CASES)
async def test_control_partial_blocks_that_do_not_know_positions_are_seen(start, monkeypatch, one, other):
    monkeypatch.setattr(partial_blocks, "position_keys", lambda request, start, end: np.zeros(end - start, np.int64))
    engine = start()
    await read_kept(engine, "one", one, 200)
    read, _ = await read_kept(engine, "other", other, 200)
    assert read == 1 + 4
    assert engine._engine.wrong_reads > 0
    engine.close()


async def test_a_prompt_that_takes_the_whole_cache_is_read_again(start):
    """A copied block exists twice for a moment. Here the cache has no room for this."""
    engine = start(blocks=33)  # 32 and vLLM's own null block
    prompt = np.random.default_rng(0).integers(16, 1016, 1020).astype(np.int32)
    for _ in range(2):
        await asyncio.wait_for(
            engine.score(ScoreRequest("s", prompt, SelectionOptions(look_ahead=2), keep_session=True)), 60
        )
    assert engine._engine.copied == 0
    engine.close()


async def test_as_many_partial_blocks_of_a_prefix_are_found_as_are_remembered(start):
    """The oldest is dropped only if there are more than MAX_PER_PREFIX."""
    engine, prompts = start(), [np.arange(16, 36, dtype=np.int32) + 100 * i for i in range(5)]

    async def read(prompt):
        before = engine._engine.tokens_read
        await engine.open_session("s", KeptPrompt.dense(prompt))
        return engine._engine.tokens_read - before

    for prompt in prompts[:4]:
        assert await read(prompt) == 20
    for prompt in prompts[:4]:
        assert await read(prompt) == 1
    assert [await read(prompts[4]), await read(prompts[0])] == [20, 20]
    engine.close()


@pytest.mark.parametrize("chosen", [True, False])
async def test_partial_blocks_can_be_switched_off(start, chosen):
    """Without them a round computes the last block again; it is counted neither as rebuilt nor as wrong."""
    engine = start(additional_config={partial_blocks.PARTIAL_BLOCKS: chosen})
    prompt, answer = np.arange(16, 116, dtype=np.int32), np.empty(0, np.int32)
    await engine.score(ScoreRequest("s", prompt, SelectionOptions(), keep_session=True))
    read = engine._engine.tokens_read
    for _ in range(3):
        answer = np.concatenate([answer, (await engine.draft("s", answer, 4)).tokens])
    assert answer.tolist() == continuation(prompt.tolist(), 12)
    assert (engine._engine.copied > 0) == chosen
    assert (engine._engine.tokens_read - read < 30) == chosen
    assert engine.session_stats()["rebuilt"] == engine._engine.wrong_reads == 0
    engine.close()
