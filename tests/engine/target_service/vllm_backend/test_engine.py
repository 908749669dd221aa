"""The vLLM target against transformers, on one engine: positions, prefix cache, sampling, aborts, refusals, death."""

import asyncio
import os
import signal
from contextlib import aclosing

import numpy as np
import pytest
from prometheus_client import REGISTRY

from kv_transfer.messages import GenerateRequest, KeptPrompt
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    TOLERANCE,
    assert_right,
    cached_tokens,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.scored import CHANGED, read, scored_answer
from tests.engine.target_service.vllm_backend.second_turns import assert_appended_is_right
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import in_order, shuffled

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def model(llama: str) -> str:
    return llama


@pytest.fixture(scope="module")
def engine(llama_engine: VllmTarget) -> VllmTarget:
    return llama_engine


async def test_a_mixed_batch_is_the_oracles(engine: VllmTarget, oracle: GenerationOracle) -> None:
    """Kept and plain requests, also with their segments in any order. The longer ones are prefilled in chunks."""
    prompts = [
        kept_prompt(900, 300, seed=1),
        dense_prompt(500, seed=2),
        kept_prompt(7900, 1500, seed=3),
        kept_prompt(90, 20, seed=4),
        dense_prompt(44, seed=5),
        kept_prompt(700, 1, seed=6),
        shuffled(kept_prompt(900, 300, seed=16)),
        shuffled(kept_prompt(7900, 1500, seed=17), size=100, last=0),
        shuffled(dense_prompt(500, seed=18)),
    ]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"mixed-{i}") for i, p in enumerate(prompts)))


async def test_the_comparison_sees_wrong_positions(engine: VllmTarget, oracle: GenerationOracle) -> None:
    """Negative control: without gaps in the positions, or decoded from another position, the tokens differ."""
    prompt = kept_prompt(900, 300, seed=7)
    numbered_anew = KeptPrompt.dense(prompt.token_ids)
    other_origin = KeptPrompt(prompt.token_ids, prompt.positions, prompt.context_length + 37)
    for wrong in (numbered_anew, other_origin):
        tokens, _, _ = joined(await collect(engine, wrong))
        assert oracle.wrong_tokens(wrong, tokens) == 0
        assert oracle.wrong_tokens(prompt, tokens) > 16


async def test_a_request_resumes_with_the_tokens_it_already_sent(engine: VllmTarget) -> None:
    """As after a replica's death: the second one gets the kept tokens and the tokens sent so far, with positions."""
    prompt = kept_prompt(900, 300, seed=8)
    whole, _, _ = joined(await collect(engine, prompt))
    sent = np.array(whole[:20], np.int32)
    resumed = KeptPrompt(
        np.concatenate((prompt.token_ids, sent)),
        np.concatenate((prompt.positions, prompt.context_length + np.arange(20, dtype=np.int32))),
        prompt.context_length + 20,
    )
    rest, _, _ = joined(await collect(engine, resumed, max_tokens=44))
    assert whole[:20] + rest == whole


async def test_cached_blocks_are_shared_only_at_equal_positions(engine: VllmTarget, oracle: GenerationOracle) -> None:
    one = kept_prompt(1200, 400, seed=9, lead_in=100)
    moved = KeptPrompt(one.token_ids, one.positions + 1, one.context_length + 1)
    plain = KeptPrompt.dense(one.token_ids)
    cached = []
    for name, prompt in {"first": one, "moved": moved, "plain": plain, "again": one}.items():
        outputs = await collect(engine, prompt, name)
        assert oracle.wrong_tokens(prompt, joined(outputs)[0]) == 0
        cached.append(outputs[0].cached_tokens)
    # The 100 lead-in tokens, and all but the last token, which is always computed.
    assert cached == [0, 0, *cached_tokens(100, 399)]


@pytest.mark.parametrize(
    "order", [np.arange(480)[::-1], np.r_[448:480, 32:448, 0:32]], ids=["reversed", "first and last block swapped"]
)
async def test_a_whole_prompt_in_another_order_shares_no_block_with_a_plain_one(
    engine: VllmTarget, oracle: GenerationOracle, order: np.ndarray
) -> None:
    """`test_hooks_matter` shows what happens if it does."""
    moved = in_order(dense_prompt(480, seed=19), order)
    cached = []
    for name, prompt in {"moved": moved, "plain": KeptPrompt.dense(moved.token_ids), "again": moved}.items():
        outputs = await collect(engine, prompt, name)
        assert oracle.wrong_tokens(prompt, joined(outputs)[0]) == 0
        cached.append(outputs[0].cached_tokens)
    assert cached == [0, 0, *cached_tokens(479)]


async def test_what_is_appended_reuses_the_blocks_of_what_stands(engine: VllmTarget, oracle: GenerationOracle) -> None:
    await assert_appended_is_right(engine, oracle)


async def test_several_sampled_answers(engine: VllmTarget, oracle: GenerationOracle) -> None:
    """n > 1: the oracle confirms each answer's reported probabilities; a seed reproduces the answers."""
    prompt = kept_prompt(500, 120, seed=10)
    sampling = {"n": 3, "temperature": 1.0, "seed": 4, "max_tokens": 12}
    outputs, again = [await collect(engine, prompt, **sampling) for _ in range(2)]
    answers = [joined(outputs, index) for index in range(3)]
    assert [a[0] for a in answers] == [joined(again, index)[0] for index in range(3)]
    assert len({tuple(tokens) for tokens, _, _ in answers}) == 3
    for tokens, logprobs, _ in answers:
        assert [row[0].token_id for row in logprobs] == tokens
        assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE


async def test_outputs_of_each_kind_tell_the_same(engine: VllmTarget) -> None:
    prompt = kept_prompt(500, 120, seed=11)
    deltas = await collect(engine, prompt, output_kind=1)
    [final] = await collect(engine, prompt, output_kind=2, flat_logprobs=True)
    told = final.completions[0]
    tokens, logprobs, text = joined(deltas)
    assert (told.token_ids.tolist(), told.text) == (tokens, text)
    assert [[c.token_id for c in row] for row in told.logprobs or []] == [[c.token_id for c in r] for r in logprobs]
    assert [[c.decoded for c in row] for row in told.logprobs or []] == [[c.decoded for c in r] for r in logprobs]
    assert [o.timings.keys() == {"queue", "prefill"} for o in deltas] == [True] + [False] * (len(deltas) - 1)
    assert deltas[0].timings["prefill"] > 0


async def test_stops(engine: VllmTarget) -> None:
    prompt = kept_prompt(500, 120, seed=11)
    tokens, _, text = joined(await collect(engine, prompt))
    [by_token] = await collect(engine, prompt, stop_token_ids=[tokens[9]], output_kind=2)
    stopped = by_token.completions[0]
    assert stopped.token_ids.tolist() == tokens[: tokens.index(tokens[9]) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", tokens[9])
    stop = text[20:24]
    by_string = await collect(engine, prompt, stop=[stop])
    assert joined(by_string)[2] == text[: text.index(stop)]
    assert by_string[-1].completions[0].stop_reason == stop
    [by_length] = await collect(engine, prompt, max_tokens=5, output_kind=2)
    assert by_length.completions[0].finish_reason == "length"


async def test_prompt_logprobs_of_a_dense_prompt(engine: VllmTarget, oracle: GenerationOracle) -> None:
    prompt = dense_prompt(80, seed=12)
    outputs = await collect(engine, prompt, prompt_logprobs=2, max_tokens=1)
    told = outputs[0].prompt_logprobs
    assert told is not None
    assert told[0] is None
    ids = prompt.token_ids.tolist()
    ours = oracle.logprobs(KeptPrompt.dense(ids[:1]), ids[1:])
    for row, expected in zip(told[1:], ours, strict=True):
        assert all(abs(c.logprob - expected[c.token_id].item()) <= TOLERANCE for c in row or [])
    assert [row[0].token_id for row in told[1:] if row] == ids[1:]


async def test_other_salts_share_no_cached_blocks(engine: VllmTarget) -> None:
    prompt = kept_prompt(500, 200, seed=13)
    cached = []
    for salt in ("a", "b", "a"):
        request = GenerateRequest("salted", prompt, {"max_tokens": 1}, cache_salt=salt)
        outputs = [o async for o in engine.generate(request)]
        cached.append(outputs[0].cached_tokens)
    assert cached == [0, 0, *cached_tokens(199)]


async def running_in_core(engine: VllmTarget) -> float:
    """Number of requests in the engine core, including the one sent here: the core reports it in each step."""
    seen: list[float] = []
    # An output may hold the tokens of several steps, if reading here is slower than the engine.
    probe = GenerateRequest("probe", dense_prompt(40), {"max_tokens": 7000, "ignore_eos": True})
    async with aclosing(engine.generate(probe)) as outputs:
        while len(seen) < 20:
            await anext(outputs)
            told = [s for m in REGISTRY.collect() if m.name == "vllm:num_requests_running" for s in m.samples]
            seen.append(sum(sample.value for sample in told))
    return max(seen[10:])


async def test_a_client_that_left_during_the_prefill_finds_its_blocks(engine: VllmTarget) -> None:
    """The control: of a prompt that nobody has sent, nothing is found."""
    for seed in range(41, 51):
        prompt = dense_prompt(7900, seed=seed)
        await leave_early(engine, prompt)
        if (found := (await collect(engine, prompt, max_tokens=1))[0].cached_tokens) < 7899:
            break  # else it was complete before the engine heard of it
    assert 3 * 255 <= found < 7899
    assert (await collect(engine, dense_prompt(7900, seed=51), max_tokens=1))[0].cached_tokens == 0


async def leave_early(engine: VllmTarget, prompt: KeptPrompt) -> None:
    """Cancel a request after some steps. Each step gives the stream beside it one token, and the prompt up to 255."""
    beside = GenerateRequest("beside", dense_prompt(44, seed=15), {"max_tokens": 7000, "ignore_eos": True})
    async with aclosing(engine.generate(beside)) as outputs:
        await anext(outputs)
        leaving = asyncio.ensure_future(collect(engine, prompt, "leaving", max_tokens=1))
        for _ in range(6):
            await anext(outputs)
        leaving.cancel()
        await asyncio.wait([leaving])


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_a_stream_aborts_the_request(engine: VllmTarget, how: str) -> None:
    long = GenerateRequest("left", kept_prompt(900, 300, seed=14), {"max_tokens": 7000, "ignore_eos": True})
    stream = engine.generate(long)
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in stream:
            begun.set()

    if how == "close":
        await anext(stream)
        assert await running_in_core(engine) == 2
        await stream.aclose()
    else:
        task = asyncio.create_task(read())
        await begun.wait()
        assert await running_in_core(engine) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await running_in_core(engine) == 1


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        (kept_prompt(8190, 20), {"max_tokens": 3}, ["8193", "8192"]),
        (kept_prompt(8190, 20), {"max_tokens": 7000}, ["15190", "8192"]),
        (KeptPrompt.dense([16, 724]), {}, ["724"]),
        (kept_prompt(90, 20), {"prompt_logprobs": 1}, ["prompt_logprobs"]),
        (kept_prompt(90, 20), {"extra_args": {"skim_kept_positions": b"\0"}}, ["skim_kept_positions"]),
        (kept_prompt(90, 20), {"top_p": 3.0}, ["top_p"]),
        (kept_prompt(90, 20), {"temperature": "hot"}, ["temperature"]),
        (kept_prompt(90, 20), {"logprobs": 1000}, ["logprobs"]),
        (kept_prompt(90, 20), {"top_q": 1}, ["top_q"]),
        (kept_prompt(90, 20), {"temperature": 0.0, "n": 2}, ["n must be 1"]),
    ],
)
async def test_bad_requests_are_refused(
    engine: VllmTarget, prompt: KeptPrompt, sampling: dict, words: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        [o async for o in engine.generate(GenerateRequest("bad", prompt, sampling))]
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)
    await engine.check_health()


async def test_the_last_tokens_of_a_prompt_are_scored_while_the_prefix_cache_is_used(
    engine: VllmTarget, oracle: GenerationOracle
) -> None:
    seen = await scored_answer(engine, oracle)
    assert seen["cached"] == 128
    assert seen["difference"] <= TOLERANCE
    assert seen["ranks"] == seen["true_ranks"]
    assert all(seen["ranks"][place] > 1 for place in CHANGED)
    assert seen["ranks"].count(1) >= 2, "the control: the dense model's own tokens have rank 1"
    assert seen["again"] is None, "tokens that were not computed have no scores"
    with pytest.raises(InvalidRequestError, match="whole prompt"):
        await read(engine, kept_prompt(90, 20), "lossy", 4)


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "["},
        {"regex": r"\p{L}+"},  # the check takes it, and the compiler does not
        {"json": {"type": "object", "patternProperties": {"(": {"type": "string"}}}},
        {"json": {"$ref": "#"}},  # allows no text
        {"json": {"type": "no-such"}},
        {"grammar": "root ::= undefined"},
    ],
)
async def test_a_structured_output_that_cannot_be_is_refused(engine: VllmTarget, constraint: dict) -> None:
    """vLLM gives such a request up, where it is the client's to mend. The engine serves on."""
    prompt = dense_prompt(40, seed=61)
    with pytest.raises(InvalidRequestError):
        await collect(engine, prompt, "refused", structured_outputs=constraint)
    await collect(engine, prompt, "control", structured_outputs={"regex": "[a-z]{4}"}, ignore_eos=False)


async def test_a_busy_engine_gives_a_sign_of_life_and_a_stopped_one_none(engine: VllmTarget) -> None:
    """Stopped, it is not dead: only the missing sign tells. It goes on where it was."""
    prompt = GenerateRequest("busy", kept_prompt(900, 300, seed=18), {"max_tokens": 300, "ignore_eos": True})
    async with aclosing(engine.generate(prompt)) as outputs:
        await anext(outputs)
        await engine.sign_of_life()
        [core] = engine._engine.engine_core.resources.engine_manager.processes
        os.kill(core.pid, signal.SIGSTOP)
        try:
            sign = asyncio.create_task(engine.sign_of_life())
            assert await asyncio.wait({sign}, timeout=1.0) == (set(), {sign})
            await engine.check_health()
        finally:
            os.kill(core.pid, signal.SIGCONT)
        await sign
        last = [output async for output in outputs][-1]
    assert last.finished


async def test_a_dead_engine_core_is_told(engine: VllmTarget) -> None:
    """This must be the last test of the module: it kills the engine."""
    await engine.check_health()
    stream = engine.generate(GenerateRequest("orphan", kept_prompt(900, 300, seed=15), {"max_tokens": 7000}))
    await anext(stream)
    [core] = engine._engine.engine_core.resources.engine_manager.processes
    core.kill()
    with pytest.raises(EngineUnavailableError):
        async for _ in stream:
            pass
    with pytest.raises(EngineUnavailableError):
        await anext(engine.generate(GenerateRequest("late", kept_prompt(90, 20))))
    with pytest.raises(EngineUnavailableError):
        await engine.check_health()
    engine.close()
    engine.close()
