"""The simulated engine: vLLM's prefix cache and scheduler, with the plan's times."""

import asyncio
import random

import numpy as np
import pytest

from benchmarks.harness.virtual_time import run
from benchmarks.sessions.engine import BLOCK, PCIE, Blocks, SimulatedEngine, blocks_of
from benchmarks.sessions.simulation import model
from cluster.plan import GPUS, PlannedEngine
from kv_transfer.messages import KeptPrompt
from skim_common.models.costs import Read

PLANNED = PlannedEngine(model("target"), GPUS["h100"], 4)
ROOM = 100_000


def prompt(tokens, seed=0):
    return KeptPrompt.dense(np.random.default_rng(seed).integers(128_000, size=tokens, dtype=np.int32))


def use(blocks, hashes, count=None):
    """One request from its start to its end: the blocks that it found."""
    held, _ = blocks.match(hashes)
    count = count or len(hashes)
    assert blocks.take(hashes[:held], count)
    blocks.give_back(hashes[:held], count, hashes)
    return held


def test_the_least_recently_used_prompt_goes_first_and_its_end_before_its_beginning():
    blocks = Blocks(6)
    use(blocks, [1, 2, 3])
    use(blocks, [11, 12])
    assert use(blocks, [1, 2, 3]) == 3
    use(blocks, [21, 22])  # one block is free: 12, the end of what is longest unused, goes
    assert blocks.match([11, 12]) == (1, 0)
    assert blocks.match([1, 2, 3]) == (3, 0)
    assert blocks.evicted == 1


def test_what_runs_is_not_evicted_and_a_prompt_without_room_waits():
    blocks = Blocks(5)
    assert blocks.take([], 3)
    assert not blocks.take([], 3)
    blocks.give_back([], 3, [1, 2, 3])
    assert blocks.take([], 3)
    assert blocks.match([1, 2, 3]) == (2, 0)


def test_an_evicted_block_is_found_in_cpu_memory_and_only_there():
    blocks = Blocks(3, offloaded=4)
    use(blocks, [1, 2, 3])
    use(blocks, [11, 12, 13])
    assert blocks.match([1, 2, 3]) == (0, 1)  # the four latest: 13, 12, 11, and the first block of the other prompt
    without = Blocks(3)
    use(without, [1, 2, 3])
    use(without, [11, 12, 13])
    assert without.match([1, 2, 3]) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_more_memory_never_finds_less_and_never_evicts_more(seed):
    chosen = random.Random(seed)
    prompts = [[1000 * number + block for block in range(chosen.randrange(2, 20))] for number in range(8)]
    order = [chosen.choice(prompts) for _ in range(200)]
    found, evicted = [], []
    for size in (20, 30, 50, 200):
        blocks = Blocks(size)
        found.append(sum(use(blocks, hashes) for hashes in order))
        evicted.append(blocks.evicted)
    assert found == sorted(found)
    assert evicted == sorted(evicted, reverse=True)
    assert evicted[0] > evicted[-1] == 0  # the control: with too little memory, there are evictions


def test_a_block_stands_for_ids_positions_order_and_salt_of_all_before_it():
    whole = prompt(4 * BLOCK)
    dropped = KeptPrompt(np.delete(whole.token_ids, 200), np.delete(whole.positions, 200), whole.context_length)
    moved = KeptPrompt(dropped.token_ids, np.arange(dropped.token_ids.size, dtype=np.int32), dropped.token_ids.size)
    swapped = KeptPrompt(whole.token_ids[::-1].copy(), whole.positions[::-1].copy(), whole.context_length)
    blocks = blocks_of(whole)
    assert blocks == blocks_of(whole.extended([1, 2, 3]))
    assert blocks_of(dropped)[0] == blocks[0]
    for other in (blocks_of(dropped)[1:], blocks_of(moved)[1:], blocks_of(swapped), blocks_of(whole, "salt")):
        assert not set(other) & set(blocks)
    assert not set(blocks_of(dropped)[1:]) & set(blocks_of(moved)[1:])


async def first_token(engine, asked, answer=1):
    """Seconds to the first token, and the tokens that were cached."""
    began = asyncio.get_running_loop().time()
    row = engine.submit(asked, answer)
    await row.first.wait()
    first = asyncio.get_running_loop().time() - began
    await row.ended.wait()
    engine.end(row, asked.extended(np.zeros(answer, np.int32)))
    return first, row.cached


def test_a_prompt_takes_the_time_of_the_plan_cold_and_behind_what_is_cached():
    asked = prompt(20_000)

    async def simulation():
        engine = SimulatedEngine(PLANNED, ROOM)
        return await first_token(engine, asked), await first_token(engine, asked.extended(np.arange(500)))

    (cold, nothing), (warm, cached) = run(simulation())
    whole = asked.token_ids.size // BLOCK * BLOCK
    assert (nothing, cached) == (0, whole)
    assert cold == pytest.approx(PLANNED.read_s(Read(20_000)), rel=0.02)
    assert warm == pytest.approx(PLANNED.read_s(Read(20_500 - whole, whole)), rel=0.02)


def test_prefills_wait_for_each_other_and_slow_the_answers_down():
    async def simulation():
        engine = SimulatedEngine(PLANNED, ROOM)
        alone = await first_token(engine, prompt(30_000, 1))
        both = await asyncio.gather(*(first_token(engine, prompt(30_000, seed)) for seed in (2, 3)))
        return alone[0], [first for first, _ in both]

    alone, (first, second) = run(simulation())
    assert alone < first < 1.1 * alone  # its last step also reads the other prompt's first tokens
    assert second == pytest.approx(2 * alone, rel=0.05)


def test_many_steps_at_once_take_as_long_as_one_by_one():
    async def answered(*interrupted):
        engine = SimulatedEngine(PLANNED, ROOM)
        row = engine.submit(prompt(1000), 200)
        await row.first.wait()
        began = asyncio.get_running_loop().time()
        for seconds in interrupted:
            await asyncio.sleep(seconds)
            other = engine.submit(prompt(10), 1)
            await other.first.wait()
            engine.end(other, prompt(10))
        await row.ended.wait()
        return asyncio.get_running_loop().time() - began

    alone = run(answered())
    assert alone == pytest.approx(199 * PLANNED.step_s(1, 1000), rel=0.02)
    assert alone < run(answered(0.1, 0.2, 0.3)) < 1.2 * alone


def test_offloaded_blocks_come_back_at_the_speed_of_the_bus():
    async def simulation(offloaded):
        engine = SimulatedEngine(PLANNED, 40_000, offloaded)
        await first_token(engine, prompt(30_000, 1))
        await first_token(engine, prompt(30_000, 2))
        return (await first_token(engine, prompt(30_000, 1)))[0]

    whole = (30_000 - 1) // BLOCK * BLOCK
    loaded = PLANNED.kv_bytes(whole) / PCIE + PLANNED.read_s(Read(30_000 - whole, whole))
    with_memory, without = run(simulation(10**6)), run(simulation(0))
    assert loaded / 2 < with_memory < 1.1 * loaded  # a part of it is still in the GPU's memory
    assert without > 3 * with_memory


def test_an_aborted_request_leaves_its_room():
    async def simulation():
        engine = SimulatedEngine(PLANNED, 20_000)
        row, waits = engine.submit(prompt(15_000, 1), 10), engine.submit(prompt(15_000, 2), 10)
        await asyncio.sleep(0.1)
        assert not waits.began
        engine.end(row, prompt(15_000, 1))
        await waits.first.wait()
        engine.end(waits, prompt(15_000, 2))

    run(simulation())
