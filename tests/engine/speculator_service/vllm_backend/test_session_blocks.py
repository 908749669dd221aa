"""The KV blocks of sessions, with vLLM's real scheduler and without a model (see `simulated_engine`)."""

import asyncio
import itertools

import numpy as np
import pytest
from vllm.utils.hashing import sha256

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from speculator_service.vllm_backend import multi_step
from tests.engine.speculator_service.vllm_backend.simulated_engine import continuation
from tests.engine.speculator_service.vllm_backend.simulated_speculator import (
    BLOCK,
    SESSIONS,
    SLOTS,
    simulated_speculators,
)
from tests.reference.segments import shuffled


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with simulated_speculators(tmp_path_factory.mktemp("llama")) as start:
        yield start


class Life:
    """Random sessions, one after the other under new ids, until all lives together have done `rounds` rounds.

    asked: some prompts of all lives, with their salts; one of five prompts is one of them again.
    """

    asked = [(np.arange(16, 216, dtype=np.int32), None)] * 4

    def __init__(self, engine, seed):
        self.engine, self.rng, self.wrong, self.cancelled = engine, np.random.default_rng(seed), 0, 0

    def ids(self, count):
        return self.rng.integers(16, 1016, count).astype(np.int32)

    async def run(self, name, rounds):
        while self.engine.counts["rounds"] < rounds:
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
        if self.rng.random() < 0.2:
            ids, salt = self.asked[self.rng.integers(0, len(self.asked))]
        self.asked[self.rng.integers(0, len(self.asked))] = ids, salt
        # A question's tokens are computed, also if they are cached.
        question = self.rng.random() < 0.3
        options = SelectionOptions(look_ahead=4, scoring="heads" if question else "attention")
        rows = ((ids.size // 2, max(ids.size // 2 + 1, ids.size - 10)),) if question else ()
        await self.engine.score(ScoreRequest(name, ids, options, cache_salt=salt, keep_session=True, questions=rows))
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
        drafts = [(await self.engine.draft(name, a, count)).tokens.tolist() for a in answers]
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


@pytest.mark.parametrize("rounds", [2_000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_thousands_of_rounds_leave_no_block_and_never_read_another_prefix(start, rounds):
    engine = start(blocks=40)
    simulated = engine._engine

    # Time slicing depends on the clock, so every run differs.
    def rare():
        return simulated.aborted_in_flight, simulated.fell_behind, simulated.preempted

    lives = await live(engine, rounds, rare)
    stats = dict(engine.counts)
    assert simulated.wrong_reads == sum(life.wrong for life in lives) == 0
    assert simulated.referenced_blocks == 0
    assert not engine._sessions
    assert simulated.scheduler.get_num_unfinished_requests() == 0
    # All events that can happen to a session occurred.
    assert stats["rounds"] >= rounds
    assert min(stats["rollbacks"], stats["rebuilt"], sum(life.cancelled for life in lives)) > rounds // 100
    assert min(rare()) > 0
    assert simulated.most_running == SLOTS
    engine.close()


async def test_a_round_is_one_step(start, monkeypatch):
    """Also of several sessions. Negative controls: without multi-step scheduling, and without gang scheduling."""
    engine = start()
    simulated = engine._engine

    async def steps():
        await simulated._pump  # until the engine is idle
        before = simulated.steps
        answers = [np.arange(16, 16 + n, dtype=np.int32) for n in range(3)]
        drafts = await asyncio.gather(*(engine.draft(name, a, 6) for name, a in zip("abc", answers, strict=True)))
        prompt = list(range(16, 116))
        assert [d.tokens.tolist() for d in drafts] == [continuation([*prompt, *a], 6) for a in answers]
        return simulated.steps - before

    for count, name in enumerate("abc", 1):
        await engine.score(
            ScoreRequest(name, np.arange(16, 116, dtype=np.int32), SelectionOptions(look_ahead=8), keep_session=True)
        )
        assert simulated.steps == count
    simulated.scheduler.clock = lambda: 0.0
    assert await steps() == 1
    for most, expected in ((4, 2), (0, 6)):
        monkeypatch.setattr(multi_step, "MAX_STEPS", most)
        assert await steps() == expected
    monkeypatch.undo()
    simulated.scheduler.clock = itertools.count().__next__
    assert await steps() > 1
    engine.close()


async def test_a_round_reads_nothing_again_but_its_last_block(start):
    engine = start()
    simulated, prompt = engine._engine, np.arange(16, 116, dtype=np.int32)
    await engine.score(ScoreRequest("s", prompt, SelectionOptions(), keep_session=True))

    async def read(answer):
        before = simulated.tokens_read
        drafted = await engine.draft("s", answer, 4)
        assert drafted.tokens.tolist() == continuation([*prompt, *answer], 4)
        return simulated.tokens_read - before, drafted.tokens

    nothing = np.empty(0, np.int32)
    first, drafts = await read(nothing)
    second, _ = await read(np.append(drafts[:2], 999).astype(np.int32))
    assert (first, second) == (100 % BLOCK + 3, 103 % BLOCK + 3)  # with three drafts
    engine.close()


async def test_two_equal_questions_in_one_step(start):
    """The second one computes its question again, from inside a block that the first one computes in this step."""
    engine = start()
    simulated, prompt = engine._engine, np.random.default_rng(0).integers(16, 1016, 100).astype(np.int32)
    simulated._arrivals = itertools.repeat(0)  # both come before the next step

    def ask(name):
        options = SelectionOptions(scoring="heads")
        return engine.score(ScoreRequest(name, prompt, options, questions=((70, 90),)))

    await asyncio.gather(ask("first"), ask("second"))
    assert (simulated.steps, simulated.wrong_reads) == (1, 0)
    await ask("third")
    assert simulated.wrong_reads == 0
    engine.close()


async def test_idle_sessions_give_way_to_a_prompt_and_come_back(start):
    """Idle sessions hold no block and no slot. A prompt evicts their blocks, the least recently used first."""
    engine = start()
    prompts = {f"s{i}": np.random.default_rng(i).integers(16, 1016, 800).astype(np.int32) for i in range(SLOTS)}
    for name, prompt in prompts.items():
        await engine.score(ScoreRequest(name, prompt, SelectionOptions(), keep_session=True))
        assert engine._engine.referenced_blocks == 0
    # 4 x 25 blocks do not fit in 63. The last prompt still has all its blocks, the first one has lost some.
    for name, rebuilt in (("s3", 0), ("s2", 0), ("s0", 1)):
        drafted = await engine.draft(name, np.empty(0, np.int32), 4)
        assert drafted.tokens.tolist() == continuation(prompts[name].tolist(), 4)
        assert engine.counts["rebuilt"] == rebuilt
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
