"""Drafting sessions of a Llama (head size 64), against transformers, which reads prompt and answer each time."""

import asyncio
from collections import Counter

import numpy as np
import pytest
import pytest_asyncio
import torch
from vllm.platforms import current_platform

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SessionLostError
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE, follow, kept_of, patience, tokens_a_step
from tests.reference.models import random_prompt
from tests.reference.sampling_oracle import chi_square_p
from tests.reference.segments import shuffled

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

OPTIONS = SelectionOptions(look_ahead=4)
NOTHING = np.empty(0, np.int32)


@pytest.fixture(scope="module")
def rig(llama_rig):
    return llama_rig


@pytest_asyncio.fixture(loop_scope="session")
async def patient(rig):
    """The rounds of a gang wait for each other even if the machine is busy."""
    from speculator_service.vllm_backend.scheduler import GANG_WAIT_S

    await rig.call(patience(600.0))
    yield
    await rig.call(patience(GANG_WAIT_S))


async def test_the_limits_of_sessions_are_those_of_the_engine(rig):
    config = rig.engine._engine.vllm_config
    assert rig.engine.max_sessions == config.scheduler_config.max_num_seqs
    assert rig.engine.max_session_tokens == config.cache_config.kv_cache_size_tokens / 2


async def test_an_engine_on_cpus_knows_that_its_reads_slow_the_target(rig):
    assert rig.engine.shares_device == current_platform.is_cpu()


async def test_drafts_are_the_greedy_continuation_whatever_was_accepted(rig):
    """Full and kept sessions of several lengths and orders at once, while other prompts are scored."""
    lengths = {"a": 1, "b": 31, "c": 64, "d": 300, "e": 700}
    prompts = {name: await rig.keep(name, random_prompt(n, seed=n), OPTIONS) for name, n in lengths.items()}
    for seed, length in ((1, 90), (2, 700)):
        prompts[f"kept{seed}"] = kept_of(random_prompt(length, seed=length), seed)
        prompts[f"shuffled{seed}"] = shuffled(prompts[f"kept{seed}"], size=10)
        for name in (f"kept{seed}", f"shuffled{seed}"):
            await rig.engine.open_session(name, prompts[name])
    before = dict(rig.engine.counts)
    calls = [follow(rig, name, prompt, 12, i) for i, (name, prompt) in enumerate(prompts.items())]
    scoring = rig.errors([(random_prompt(length, seed=length), OPTIONS) for length in (200, 300, 400, 500)])
    *_, errors = await asyncio.gather(*calls, scoring)
    assert max(errors) <= TOLERANCE
    after = dict(rig.engine.counts)
    assert after["rounds"] - before["rounds"] == 12 * len(prompts)
    assert after["rollbacks"] - before["rollbacks"] > 20
    assert after["rebuilt"] == 0
    for name in prompts:
        await rig.engine.close_session(name)
    assert len(rig.engine._sessions) == 0


async def test_a_session_goes_back_to_other_answers(rig):
    prompt = await rig.keep("r", random_prompt(150, seed=3), OPTIONS)
    stem = np.array(random_prompt(20, seed=4), np.int32)
    answers = [np.concatenate([stem, np.array(end, np.int32)]) for end in ([], [30], [31], [30, 40], [30, 41, 42])]
    for answer in answers:
        rig.check_greedy(prompt, answer, await rig.engine.draft("r", answer, 3), 3)
    await rig.engine.close_session("r")


async def test_q_is_the_truncated_distribution_at_its_temperature(rig):
    prompt = await rig.keep("q", random_prompt(80, seed=6), OPTIONS)
    answer = np.array(random_prompt(5, seed=7), np.int32)
    for temperature, top_m in ((0.7, 8), (1.0, 1), (1.5, 512)):
        drafted = await rig.engine.draft("q", answer, 3, temperature=temperature, top_m=top_m)
        rig.check_sampled(prompt, answer, drafted, 3, temperature, top_m)
    await rig.engine.close_session("q")


@pytest.mark.usefixtures("patient")
async def test_a_round_is_one_engine_step(rig):
    """Also of sampled drafts and a look-ahead; long rounds take several. Negative control: no multi-step scheduling."""
    prompt = await rig.keep("one", random_prompt(100, seed=15), OPTIONS)
    answer = np.array(random_prompt(5, seed=16), np.int32)

    async def steps(*calls):
        before = await rig.steps()
        for drafted, count in zip(await asyncio.gather(*(c for c, _ in calls)), (n for _, n in calls), strict=True):
            rig.check_greedy(prompt, answer, drafted, count)
        return await rig.steps() - before

    assert await steps((rig.engine.draft("one", answer, 6), 6)) == 1
    assert await steps((rig.engine.draft("one", answer, 40), 40)) == 3  # 17, 17 and 6
    before = await rig.steps()
    rig.check_sampled(prompt, answer, await rig.engine.draft("one", answer, 5, temperature=0.7, top_m=8), 5, 0.7, 8)
    assert await rig.steps() - before == 1
    assert await rig.errors([(random_prompt(200, seed=17), SelectionOptions(look_ahead=8))]) <= [TOLERANCE]
    assert await rig.steps() - before == 2

    await rig.call(tokens_a_step(1))
    try:
        assert await steps((rig.engine.draft("one", answer, 6), 6)) == 6
    finally:
        await rig.call(tokens_a_step(17))
    await rig.engine.close_session("one")


async def test_sampled_drafts_follow_the_q_that_comes_with_them(rig):
    """4000 pairs of tokens, compared with q of the first token times q of the second token after it."""
    prompt, names = random_prompt(60, seed=14), [f"c{i}" for i in range(16)]
    for name in names:
        await rig.keep(name, prompt, OPTIONS)
    pairs, q1, q2 = Counter(), torch.zeros(1024, dtype=torch.float64), torch.zeros(1024, 1024, dtype=torch.float64)
    for _ in range(250):
        calls = (rig.engine.draft(name, NOTHING, 2, temperature=0.8, top_m=6) for name in names)
        for drafted in await asyncio.gather(*calls):
            pairs[tuple(drafted.tokens.tolist())] += 1
            first, second = torch.from_numpy(drafted.q_probs).double().view(2, 6)
            q1[drafted.q_ids[:6]] = first
            q2[drafted.tokens[0], drafted.q_ids[6:]] = second
    assert chi_square_p(pairs, q1[:, None] * q2) > 1e-4
    # Negative control: the same drafts, compared with a uniform q.
    assert chi_square_p(pairs, (q1 > 0)[:, None] / 6 * q2) < 1e-9
    for name in names:
        await rig.engine.close_session(name)


async def test_no_drafts_past_the_last_position(rig):
    limit = rig.engine.info.max_model_len
    prompt = kept_of(random_prompt(limit - 10, seed=8), 8)
    await rig.engine.open_session("end", prompt)
    for size, expected in ((0, 4), (8, 2), (10, 0)):
        answer = np.array(random_prompt(size, seed=9), np.int32)
        drafted = await rig.engine.draft("end", answer, 4)
        assert drafted.tokens.size == expected
    await rig.engine.close_session("end")
    with pytest.raises(InvalidRequestError, match=rf"{limit + 1} tokens .* reads at most {limit}"):
        await rig.engine.open_session("past", kept_of(random_prompt(limit + 1, seed=8), 8))


async def test_what_is_not_there_is_lost_and_what_is_wrong_is_refused(rig):
    await rig.engine.close_session("never")
    with pytest.raises(SessionLostError, match="session never is not on this speculator"):
        await rig.engine.draft("never", NOTHING, 1)
    prompt = await rig.keep("w", random_prompt(40, seed=10), OPTIONS)
    with pytest.raises(InvalidRequestError, match="Token id 1024"):
        await rig.engine.draft("w", np.array([1024], np.int32), 1)
    rig.check_greedy(prompt, NOTHING, await rig.engine.draft("w", NOTHING, 2), 2)
    await rig.engine.close_session("w")
    with pytest.raises(SessionLostError):
        await rig.engine.draft("w", NOTHING, 1)


async def test_a_cancelled_draft_leaves_the_session_usable(rig):
    prompt = await rig.keep("x", random_prompt(100, seed=11), OPTIONS)
    for _ in range(5):
        call = asyncio.create_task(rig.engine.draft("x", NOTHING, 200))
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    rig.check_greedy(prompt, NOTHING, await rig.engine.draft("x", NOTHING, 4), 4)
    assert rig.engine._engine.get_num_unfinished_requests() == 0
    await rig.engine.close_session("x")


async def test_salts_share_nothing(rig):
    prompt = random_prompt(320, seed=1012)  # of no other test with this engine
    spared = []
    for salt in (None, None, "one", "one", "two"):
        await rig.keep("s", prompt, OPTIONS, **({"cache_salt": salt} if salt else {}))
        spared += rig.cached
        drafted = await rig.engine.draft("s", NOTHING, 2)
        rig.check_greedy(KeptPrompt.dense(prompt), NOTHING, drafted, 2)
    # All whole blocks before the last token, which is always computed.
    assert spared == [0, 288, 0, 288, 0]
    assert rig.engine.counts["rebuilt"] == 0
    await rig.engine.close_session("s")


async def test_kept_sessions_of_two_tenants_share_nothing(rig, monkeypatch):
    """The same tokens at the same positions: each salt computes its own KV, and finds it again."""
    generate, cached = rig.engine._generate, []

    async def noting(*arguments):
        output = await generate(*arguments)
        cached.append(output.num_cached_tokens or 0)
        return output

    monkeypatch.setattr(rig.engine, "_generate", noting)
    prompt = kept_of(random_prompt(640, seed=1320), 31)
    for salt in (None, "one", "one", "two", None):
        await rig.engine.open_session("k", prompt, cache_salt=salt)
        await rig.engine.close_session("k")
    found = cached[2]
    assert cached == [0, 0, found, 0, found]
    assert found > 0


async def test_control_positions_that_are_not_restored_are_seen(rig):
    """Read the kept tokens without their original positions: most drafts must differ."""

    def withhold(worker):
        from vllm_hooks import positions

        positions.position_map = lambda extra_args: None

    def as_before(worker):
        from kv_transfer.position_map import position_map
        from vllm_hooks import positions

        positions.position_map = position_map

    await rig.call(withhold)
    try:
        assert await wrong_kept_drafts(rig, 20) > 10
    finally:
        await rig.call(as_before)
    assert await wrong_kept_drafts(rig, 40) == 0


async def test_control_a_cache_that_does_not_see_positions_is_seen(rig):
    """Kept sessions then share KV of the same tokens at other positions."""

    async def wrong(seed):
        found, ids = 0, np.array(random_prompt(160, seed=seed), np.int32)
        for step in (2, 9):
            prompt = KeptPrompt(ids, np.arange(160, dtype=np.int32) * step, 160 * step)
            name = f"every {step}"
            await rig.engine.open_session(name, prompt)
            drafted = await rig.engine.draft(name, NOTHING, 8)
            found += rig.generation.wrong_tokens(prompt, drafted.tokens.tolist())
        return found

    def blind(worker):
        from vllm_hooks import block_hash

        block_hash.position_map = lambda extra_args: None

    def as_before(worker):
        from kv_transfer.position_map import position_map
        from vllm_hooks import block_hash

        block_hash.position_map = position_map

    assert await wrong(13) == 0
    await rig.call(blind)
    try:
        assert await wrong(14) > 0
    finally:
        await rig.call(as_before)


async def wrong_kept_drafts(rig, seed):
    wrong = 0
    for i in range(4):
        prompt = kept_of(random_prompt(200, seed=seed + i), seed + i)
        await rig.engine.open_session("k", prompt)
        drafted = await rig.engine.draft("k", NOTHING, 8)
        wrong += rig.generation.wrong_tokens(prompt, drafted.tokens.tolist())
    return wrong


async def test_a_dead_engine_says_so(rig):
    """This must be the last test with this engine: it stops the engine."""
    await rig.engine.check_health()
    pending = asyncio.create_task(rig.score(random_prompt(2000, seed=11), OPTIONS))
    await asyncio.sleep(0.1)
    for process in rig.engine._engine.engine_core.resources.engine_manager.processes:
        process.kill()
    with pytest.raises(EngineUnavailableError):
        await pending
    with pytest.raises(EngineUnavailableError):
        await rig.engine.check_health()
    rig.engine.close()
    rig.engine.close()
    with pytest.raises(EngineUnavailableError, match="closed"):
        await rig.score(random_prompt(300, seed=1), OPTIONS)
