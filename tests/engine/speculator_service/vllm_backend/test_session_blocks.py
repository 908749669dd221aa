"""The KV blocks of sessions, with vLLM's real scheduler and without a model (see `simulated_engine`)."""

import asyncio
import itertools

import numpy as np
import pytest
from vllm.utils.hashing import sha256

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.vllm_backend.scheduler import multi_step
from speculator_service.vllm_backend.scheduler.prompt_limit import PromptLimit
from speculator_service.vllm_backend.scheduler.time_slicing import TimeSlices
from tests.engine.speculator_service.vllm_backend.simulated_engine import SimulatedEngine, continuation
from tests.reference.models import build_model
from tests.reference.segments import shuffled
from vllm_hooks import partial_blocks

pytestmark = pytest.mark.slow

BLOCKS, BLOCK, SLOTS, SESSIONS = 64, 32, 4, 8


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(blocks, hash function) -> a speculator on a simulated engine with too small a KV cache for all sessions."""
    from speculator_service.vllm_backend import engine, start

    path = build_model(tmp_path_factory.mktemp("llama"), "llama")

    def simulated(model, max_model_len, tensor_parallel, options):
        return SimulatedEngine(start._engine_config(model, max_model_len, tensor_parallel, options), **hashing)

    hashing = {}

    def start_engine(blocks=BLOCKS, additional_config=None, **options):
        hashing.update(options)
        return engine.VllmSpeculator(
            path,
            max_model_len=1024,
            block_size=BLOCK,
            num_gpu_blocks_override=blocks,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=256,
            additional_config=additional_config or {},
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "start_engine", simulated)
        yield start_engine


class Life:
    """Random sessions, one after the other under new ids, until all lives together have done `rounds` rounds."""

    def __init__(self, engine, seed):
        self.engine, self.rng, self.wrong, self.cancelled = engine, np.random.default_rng(seed), 0, 0

    def ids(self, count):
        return self.rng.integers(16, 1016, count).astype(np.int32)

    async def run(self, name, rounds):
        while self.engine.session_stats()["rounds"] < rounds:
            keys, prompt = await self.open(name)
            answer = self.ids(0)
            for _ in range(self.rng.integers(0, 60)):
                answer = await self.round(name, keys, prompt, answer)
            await self.engine.close_session(name)

    async def open(self, name):
        """Two of three prompts have a common beginning, like the prompts of one application."""
        shared = np.arange(16, 16 + self.rng.integers(0, 200), dtype=np.int32)
        ids = np.concatenate([shared[: self.rng.integers(0, 2) * 200], self.ids(self.rng.integers(1, 300))])
        salt = [None, "salt"][self.rng.integers(0, 2)]
        if self.rng.random() < 0.3:
            kept = np.flatnonzero(self.rng.random(ids.size) < 0.5).astype(np.int32)
            prompt = KeptPrompt(ids[kept], kept, ids.size) if kept.size else KeptPrompt.dense(ids)
            if self.rng.random() < 0.5:
                prompt = shuffled(prompt, size=int(self.rng.integers(4, 60)), last=0)
            await self.engine.open_session(name, prompt)
            session = self.engine._sessions.get(name)
            return (session.cache_salt, session.extra_args), prompt.token_ids
        await self.engine.score(name, ids, SelectionOptions(look_ahead=4), cache_salt=salt, keep_session=True)
        return (salt, None), ids

    async def round(self, name, keys, prompt, answer):
        # Sometimes more tokens than one engine step decodes, over several blocks.
        count = int(self.rng.integers(1, 7) if self.rng.random() < 0.98 else 80)
        if self.rng.random() < 0.1:
            call = asyncio.create_task(self.engine.draft(name, answer, count))
            for _ in range(self.rng.integers(0, 20)):
                await asyncio.sleep(0)
            self.cancelled += call.cancel()
            await asyncio.wait({call})
        answers = [answer, *(np.concatenate([answer, self.ids(2)]) for _ in range(self.rng.integers(0, 3)))]
        drafts = [d.tokens.tolist() for d in await self.engine.draft_many(name, answers, count)]
        self.wrong += drafts != [continuation([*prompt.tolist(), *a.tolist()], count, *keys) for a in answers]
        taken = drafts[0][: self.rng.integers(0, count + 1)]
        back = self.rng.integers(0, answer.size + 1) if self.rng.random() < 0.05 else answer.size
        return np.concatenate([answer[:back], np.array(taken, np.int32), self.ids(1)])


async def live(engine, rounds, rare=lambda: (1,), most=100_000):
    """Run all lives for `rounds` rounds, or more (up to `most`) until every rare event has occurred."""
    lives = [Life(engine, seed) for seed in range(SESSIONS)]
    while True:
        await asyncio.gather(*(life.run(f"s{i}", rounds) for i, life in enumerate(lives)))
        if min(rare()) > 0 or rounds >= most:
            return lives
        rounds += 1000


async def test_ten_thousand_rounds_leave_no_block_and_never_read_another_prefix(start):
    engine = start(blocks=40)
    simulated = engine._engine

    # Time slicing depends on the clock, so every run differs.
    def rare():
        return simulated.aborted_in_flight, simulated.fell_behind, simulated.preempted, simulated.copied

    lives = await live(engine, 10_000, rare)
    stats = engine.session_stats()
    assert simulated.wrong_reads == sum(life.wrong for life in lives) == 0
    assert simulated.referenced_blocks == 0
    assert stats["sessions"] == 0
    assert simulated.scheduler.get_num_unfinished_requests() == 0
    # All events that can happen to a session occurred.
    assert stats["rounds"] >= 10_000
    assert min(stats["rollbacks"], stats["rebuilt"], sum(life.cancelled for life in lives)) > 100
    assert min(rare()) > 0
    assert simulated.most_running == SLOTS
    engine.close()


async def test_a_round_is_one_step(start, monkeypatch):
    """Also with branches. Negative controls: without multi-step scheduling, and without gang scheduling."""
    engine = start()
    simulated = engine._engine

    async def steps():
        await simulated._pump  # until the engine is idle
        before = simulated.steps
        answers = [np.arange(16, 16 + n, dtype=np.int32) for n in range(3)]
        drafts = await engine.draft_many("s", answers, 6)
        prompt = list(range(16, 116))
        assert [d.tokens.tolist() for d in drafts] == [continuation([*prompt, *a], 6) for a in answers]
        return simulated.steps - before

    await engine.score("s", np.arange(16, 116, dtype=np.int32), SelectionOptions(look_ahead=8), keep_session=True)
    assert simulated.steps == 1
    simulated.scheduler.clock = lambda: 0.0
    assert await steps() == 1
    for most, expected in ((4, 2), (0, 6)):
        monkeypatch.setattr(multi_step, "MAX_STEPS", most)
        assert await steps() == expected
    monkeypatch.undo()
    simulated.scheduler.clock = itertools.count().__next__
    assert await steps() > 1
    engine.close()


async def test_a_round_reads_nothing_again_but_its_last_token(start):
    """Also if its last block is not full. Negative control: without partial blocks it reads that block again."""
    engine = start()
    simulated, prompt = engine._engine, np.arange(16, 116, dtype=np.int32)
    await engine.score("s", prompt, SelectionOptions(), keep_session=True)

    async def read(answer):
        before = simulated.tokens_read
        (drafted,) = await engine.draft_many("s", [answer], 4)
        assert drafted.tokens.tolist() == continuation([*prompt, *answer], 4)
        return simulated.tokens_read - before, drafted.tokens

    nothing = np.empty(0, np.int32)
    first, drafts = await read(nothing)
    second, _ = await read(np.append(drafts[:2], 999).astype(np.int32))
    assert first == second == 4  # with three drafts
    simulated.scheduler._partial_blocks.clear()
    assert (await read(nothing))[0] == 100 % BLOCK + 3
    engine.close()


async def test_a_part_of_a_whole_block_is_found(start):
    """The same prompt again; a prompt that differs inside a block. Negative control: nothing is remembered."""
    engine, prompt = start(), np.random.default_rng(3).integers(16, 1016, 150).astype(np.int32)

    async def read(ids):
        before = engine._engine.tokens_read
        await engine.score("s", ids, SelectionOptions(look_ahead=40))
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
    monkeypatch.setattr(partial_blocks, "position_offsets", lambda request, start, end: np.zeros(end - start, np.int64))
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
        await asyncio.wait_for(engine.score("s", prompt, SelectionOptions(look_ahead=2), keep_session=True), 60)
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
    await engine.score("s", prompt, SelectionOptions(), keep_session=True)
    read = engine._engine.tokens_read
    for _ in range(3):
        answer = np.concatenate([answer, (await engine.draft("s", answer, 4)).tokens])
    assert answer.tolist() == continuation(prompt.tolist(), 12)
    assert (engine._engine.copied > 0) == chosen
    assert (engine._engine.tokens_read - read < 30) == chosen
    assert engine.session_stats()["rebuilt"] == engine._engine.wrong_reads == 0
    engine.close()


async def test_idle_sessions_give_way_to_a_prompt_and_come_back(start):
    """Idle sessions hold no block and no slot. A prompt evicts their blocks, the least recently used first."""
    engine = start()
    prompts = {f"s{i}": np.random.default_rng(i).integers(16, 1016, 800).astype(np.int32) for i in range(SLOTS)}
    for name, prompt in prompts.items():
        await engine.score(name, prompt, SelectionOptions(), keep_session=True)
        assert engine._engine.referenced_blocks == 0
    # 4 x 25 blocks do not fit in 63. The last prompt still has all its blocks, the first one has lost some.
    for name, rebuilt in (("s3", 0), ("s2", 0), ("s0", 1)):
        drafted = await engine.draft(name, np.empty(0, np.int32), 4)
        assert drafted.tokens.tolist() == continuation(prompts[name].tolist(), 4)
        assert engine.session_stats()["rebuilt"] == rebuilt
    engine.close()


async def rounds_beside_a_prompt(engine, turns):
    """The number of rounds until a prompt of four chunks is read, and how much of it was read at the first round.

    Time is counted in tokens read.
    """
    await engine.score("s", np.arange(16, 116, dtype=np.int32), SelectionOptions(), keep_session=True)
    simulated = engine._engine
    simulated.scheduler.time_slices = turns(lambda: simulated.tokens_read)
    began = simulated.tokens_read
    prompt = np.random.default_rng(0).integers(16, 1016, 1000).astype(np.int32)
    reading = asyncio.create_task(engine.score("p", prompt, SelectionOptions(look_ahead=1)))
    while simulated.tokens_read == began:  # noqa: ASYNC110  a step lasts some turns of the loop
        await asyncio.sleep(0)
    ends = []

    async def draft():
        while not reading.done():
            await engine.draft("s", np.empty(0, np.int32), 4)
            ends.append(simulated.tokens_read - began)

    # Several sessions, so that one is always waiting.
    await asyncio.gather(*(draft() for _ in range(SLOTS - 1)))
    return len(ends), ends[0]


async def test_a_draft_does_not_wait_for_a_prompt_nor_a_prompt_for_ever(start):
    engine = start()
    rounds, first = await rounds_beside_a_prompt(engine, TimeSlices)
    assert first < 3 * 256  # one chunk before the round, and one while its answer is sent
    # A round reads a token and 3 drafts. The rounds take as much time as the prompt.
    assert 0.5 * 1000 < rounds * 4 < 1.5 * 1000
    assert engine._engine.wrong_reads == engine._engine.referenced_blocks == 0
    engine.close()


async def test_control_without_turns_a_draft_waits_for_the_whole_prompt(start):
    class NoTurns(TimeSlices):
        def begin(self, **there):
            return False

    engine = start()
    rounds, first = await rounds_beside_a_prompt(engine, NoTurns)
    assert rounds <= SLOTS
    assert first >= 1000
    engine.close()


async def test_a_prompt_is_read_in_steps_that_the_limit_allows(start):
    class Short(PromptLimit):
        def tokens(self, most):
            return 64

    engine = start()
    simulated = engine._engine
    prompt = np.random.default_rng(0).integers(16, 1016, 1000).astype(np.int32)
    await engine.score("p", prompt, SelectionOptions(look_ahead=1))
    steps = simulated.steps
    simulated.scheduler.prompt_limit = Short()
    await engine.score("q", prompt[::-1].copy(), SelectionOptions(look_ahead=1))
    assert steps < 1000 / 64 <= simulated.steps - steps
    assert simulated.scheduler.max_num_scheduled_tokens > 64
    engine.close()


async def test_control_a_hash_that_misses_a_token_is_seen(start):
    """With this hash, a block is found for other tokens than it was computed for."""

    def blind(value):
        parent, tokens, keys = value
        return sha256((parent, tokens[:-1], keys))

    engine = start(hash_function=blind)
    await live(engine, 1_000)
    assert engine._engine.wrong_reads > 0
    engine.close()
