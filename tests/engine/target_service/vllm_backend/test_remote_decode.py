"""Remote drafts, greedy, on one engine: the tokens are those of plain decoding, whatever the drafter does."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kv_transfer.draft_channel import DraftServer
from kv_transfer.drafts import DraftRequest, DraftRow
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from speculator_service.drafting import DraftService
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.cases import (
    VOCABULARY,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import (
    MAX_DRAFTS,
    PLAIN,
    Case,
    decode,
    gained,
    plain_cases,
    until,
    with_session,
)
from tests.engine.target_service.vllm_backend.drafting import wrong_answers as wrong
from tests.engine.target_service.vllm_backend.second_turns import second_turns
from tests.reference.drafters import FakeSpeculator, KnowingEngine, knowing, lies
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import shuffled

HOST = "127.0.0.1"


MODEL = {"max_position": 2048}


@pytest.fixture(scope="module")
def engine(start: Start) -> BreakableTarget:
    decode = {"method": "remote", "max_draft_tokens": MAX_DRAFTS}
    # A long deadline, so that a busy machine causes no timeouts.
    return start(BreakableTarget, decode=decode, draft_channel={"deadline_s": 1.0})


@pytest.fixture(scope="module")
async def cases(engine: VllmTarget) -> list[Case]:
    """50 prompts, kept (every third in another order) and dense, and their plain answers of 64 tokens."""
    prompts = [kept_prompt(200 + 11 * i, 40 + i, seed=i) for i in range(42)]
    prompts[2::3] = map(shuffled, prompts[2::3])
    return await plain_cases(engine, prompts + [dense_prompt(50 + i, seed=100 + i) for i in range(8)], "case")


@pytest.fixture
async def speculator(cases: list[Case]) -> AsyncGenerator[FakeSpeculator, None]:
    """A speculator that sometimes drafts a wrong token."""
    async with FakeSpeculator(knowing({c.name: c.answer for c in cases}, 0.25, VOCABULARY)) as fake:
        yield fake


async def test_plain_answers_are_the_oracles_and_take_no_drafts(
    engine: VllmTarget, model: str, cases: list[Case]
) -> None:
    oracle = GenerationOracle(model)
    assert all(oracle.wrong_tokens(c.prompt, c.answer) == 0 for c in cases[::8])
    assert (await engine.decode_stats())["drafts"] == 0


@pytest.mark.parametrize(("at_once", "count"), [(8, 50), (1, 50)])
async def test_drafts_do_not_change_the_answer(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, at_once: int, count: int
) -> None:
    before = await engine.decode_stats()
    assert await wrong(engine, cases[:count], speculator, at_once=at_once) == []
    rose = gained(before, await engine.decode_stats())
    assert sum(rose["fallbacks"].values()) == 0
    assert rose["accepted"] == sum(rose["accepted_per_position"])
    # A quarter of the drafts is wrong: of 5 drafts, about 3 are accepted before the first wrong one.
    assert 0.4 < rose["accepted"] / rose["drafts"] < 0.8
    assert rose["accepted"] / rose["rounds"] > 1.5
    # All sessions end, and the drafter is informed.
    await until(lambda: len(speculator.closed) == count)
    assert set(speculator.closed) == {c.name for c in cases[:count]}


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_second_turn_reuses_the_answer_and_no_rejected_draft(
    engine: BreakableTarget, model: str, cases: list[Case], speculator: FakeSpeculator, stopped: bool
) -> None:
    oracle = GenerationOracle(model)
    assert await second_turns(engine, oracle, cases[4 + 6 * stopped :][:6], speculator, stopped) == 0


@pytest.mark.parametrize(("drafts", "at_once", "count"), [(4, 8, 50), (1, 1, 4)])
async def test_the_real_draft_service_does_not_change_the_answer(
    engine: VllmTarget, cases: list[Case], drafts: int, at_once: int, count: int
) -> None:
    service = DraftService(KnowingEngine({c.name: c.answer for c in cases}, 0.25, VOCABULARY), clock=lambda: 0.0)
    server = DraftServer(service.handle, HOST)
    address = f"{HOST}:{await server.start()}"
    options = DecodeOptions(max_draft_tokens=drafts, adaptive=False)
    turns = asyncio.Semaphore(at_once)

    async def answer(case: Case) -> list[int]:
        async with turns:
            service.adopt(case.name, np.array(case.answer[:3], np.int32))
            prompt = replace(case.prompt, session=SessionHandle(address, case.name))
            return await decode(engine, prompt, case.name, options, max_tokens=len(case.answer))

    try:
        assert await asyncio.gather(*map(answer, cases[:count])) == [case.answer for case in cases[:count]]
        counts = service.metrics()
    finally:
        await server.stop()
        await service.close()
    assert counts["lost"] == 0
    assert counts["drafts"] > counts["draft_requests"] / 2


@pytest.mark.parametrize("known", [0, 17, 20, 26])
async def test_a_session_goes_on_when_another_replica_continues_the_answer(
    engine: VllmTarget, cases: list[Case], known: int
) -> None:
    """The client has 20 tokens. The drafter may know fewer, or more: the lost replica told it, but not the router."""
    service = DraftService(KnowingEngine({c.name: c.answer for c in cases}, 0.25, VOCABULARY), clock=lambda: 0.0)
    server = DraftServer(service.handle, HOST)
    address = f"{HOST}:{await server.start()}"
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)

    async def rest(case: Case) -> list[int]:
        service.adopt(case.name, np.array(case.answer[:3], np.int32))
        await service.handle(DraftRequest([DraftRow(case.name, 0, np.array(case.answer[:known], np.int32), 0)]))
        prompt = replace(case.prompt.extended(case.answer[:20]), session=SessionHandle(address, case.name))
        sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": len(case.answer)}
        request = GenerateRequest(f"{case.name}-rest", prompt, sampling, decode=options, answered=20)
        return joined([o async for o in engine.generate(request)])[0]

    before = await engine.decode_stats()
    try:
        assert await asyncio.gather(*map(rest, cases[:8])) == [case.answer[20:] for case in cases[:8]]
        counts = service.metrics()
    finally:
        await server.stop()
        await service.close()
    assert counts["lost"] == 0
    rose = gained(before, await engine.decode_stats())
    assert 0.4 < rose["accepted"] / rose["drafts"] < 0.8


@pytest.mark.parametrize("drafts", [1, 2, 3])
async def test_a_request_may_ask_for_fewer_drafts(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, drafts: int
) -> None:
    before = await engine.decode_stats()
    assert await wrong(engine, cases[:6], speculator, max_draft_tokens=drafts) == []
    at = gained(before, await engine.decode_stats())["drafts_per_position"]
    assert at[drafts - 1] > 0
    assert at[drafts:] == [0] * (MAX_DRAFTS - drafts)


async def test_none_takes_no_drafts_beside_requests_that_do(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    other = cases[6]
    answer, *rest = await asyncio.gather(
        decode(engine, with_session(other, speculator, other.answer), other.name, PLAIN),
        wrong(engine, cases[:3], speculator),
    )
    assert (answer, rest) == (other.answer, [[]])
    assert other.name not in {row.session for r in speculator.requests for row in r.rows}
    await until(lambda: other.name in speculator.closed)


async def test_look_ahead_tokens_are_drafts_at_no_call(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    before = await engine.decode_stats()
    assert await wrong(engine, cases[:1], speculator, look_ahead=13) == []
    rose = gained(before, await engine.decode_stats())
    # The target samples the first token, and one more after each block of 5 that it accepts.
    assert rose["look_ahead"] == 10
    first = speculator.requests[0].rows[0]
    assert (first.position, first.tokens.tolist()) == (0, cases[0].answer[: first.tokens.size])
    assert first.tokens.size >= 13
    assert rose["accepted_per_position"][0] > 0


async def test_look_ahead_that_misses_is_left_at_once(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    case = cases[1]
    missed = [*case.answer[:3], (case.answer[3] + 1) % VOCABULARY, *case.answer[4:9]]
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
    assert await decode(engine, with_session(case, speculator, missed), case.name, options) == case.answer
    assert speculator.requests[0].rows[0].tokens.tolist() == case.answer[:4]


async def test_adaptive_requests_are_right_too(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    before = await engine.decode_stats()
    assert await wrong(engine, cases[:8], speculator, adaptive=True) == []
    assert sum(gained(before, await engine.decode_stats())["chosen"].values()) > 0


@pytest.mark.parametrize("lie", lies(VOCABULARY))
async def test_a_lying_drafter_changes_no_token(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, lie: str
) -> None:
    before = await engine.decode_stats()
    speculator.draft = lies(VOCABULARY)[lie]
    assert await wrong(engine, cases[:4], speculator) == []
    rose = gained(before, await engine.decode_stats())
    if lie == "random_tokens":
        assert rose["drafts"] > 10 * rose["accepted"]
    else:
        assert rose["fallbacks"]["broken"] > 0
        assert rose["drafts"] == 0


async def test_answers_go_on_without_drafts_after_the_drafter_died(
    engine: VllmTarget, speculator: FakeSpeculator
) -> None:
    """The drafter dies during answers, loses all sessions, and restarts on the same port."""
    # Long enough to run until the breaker allows a trial.
    prompts = [kept_prompt(300, 60, seed=200 + i) for i in range(4)]
    cases = await plain_cases(engine, [*prompts[:2], *map(shuffled, prompts[2:])], "long", tokens=800)
    speculator.draft = knowing({c.name: c.answer for c in cases}, 0.25, VOCABULARY)
    before = await engine.decode_stats()
    running = asyncio.create_task(wrong(engine, cases, speculator, max_draft_tokens=1))
    await until(lambda: len(speculator.requests) >= 8)
    await speculator.die()
    served = len(speculator.requests)
    while not gained(before, await engine.decode_stats())["fallbacks"]["breaker"]:  # noqa: ASYNC110  a counter elsewhere
        await asyncio.sleep(0.001)
    await speculator.start()
    assert await running == []
    rose = gained(before, await engine.decode_stats())
    assert rose["fallbacks"]["unreachable"] > 0
    # It is asked again, but less and less often, because it does not know the sessions.
    assert 0 < len(speculator.requests) - served < rose["fallbacks"]["no_draft"] / 4


async def test_a_stalled_drafter_is_waited_for_no_longer_than_the_deadline(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    before = await engine.decode_stats()
    speculator.stall_s = 5.0
    assert await wrong(engine, cases[:8], speculator) == []
    rose = gained(before, await engine.decode_stats())
    assert rose["fallbacks"]["timeout"] > 0
    assert rose["fallbacks"]["breaker"] > 0
    assert rose["drafts"] == 0


async def test_sampled_answers_beside_one_session(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    """n answers share one session: the first answer gets drafts, the others decode without drafts."""
    before = await engine.decode_stats()
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
    prompt = with_session(cases[0], speculator)
    await decode(engine, prompt, cases[0].name, options, n=3, temperature=1.0, seed=1, max_tokens=16)
    assert gained(before, await engine.decode_stats())["fallbacks"]["no_session"] > 0
    assert {row.session for r in speculator.requests for row in r.rows} == {cases[0].name}


async def test_drafts_past_the_last_position(engine: VllmTarget, speculator: FakeSpeculator) -> None:
    """If an answer ends at the model's last position, its drafts end there too."""
    prompt = kept_prompt(2048 - 64, 60, seed=77)
    [case] = await plain_cases(engine, [prompt], "last")
    speculator.draft = knowing({case.name: case.answer}, 0.0, VOCABULARY)
    assert await wrong(engine, [case], speculator) == []


@pytest.mark.parametrize("drafted", [True, False])
async def test_logit_bias_acts(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, drafted: bool
) -> None:
    """On the first token, on drafts that are verified, and on the token after them: a bias of 100 leaves one token."""
    wanted = next(token for token in range(20, 724) if token not in cases[0].answer)
    speculator.draft = knowing({cases[0].name: [wanted] * 24}, 0.0, VOCABULARY)
    before = await engine.decode_stats()
    options = DecodeOptions(adaptive=False) if drafted else PLAIN
    prompt = with_session(cases[0], speculator, [wanted] * 4 if drafted else [])
    tokens = await decode(engine, prompt, cases[0].name, options, logit_bias={wanted: 100.0}, max_tokens=24)
    assert tokens == [wanted] * 24
    rose = gained(before, await engine.decode_stats())
    assert (rose["accepted"] > 4) == drafted


@pytest.mark.parametrize("drafted", [True, False])
async def test_min_p_acts(engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, drafted: bool) -> None:
    """Near 1 it leaves the likeliest token alone, so that a sampled answer is the greedy one."""
    case = cases[1]
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": len(case.answer)}
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False) if drafted else PLAIN
    speculator.draft = knowing({case.name: case.answer}, 0.3, VOCABULARY)
    prompt = with_session(case, speculator)
    assert await decode(engine, prompt, case.name, options, min_p=0.9999, **sampling) == case.answer
    assert await decode(engine, case.prompt, "control", PLAIN, **sampling) != case.answer


async def test_structured_output_takes_certain_drafts(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    before = await engine.decode_stats()
    options, prompt = DecodeOptions(adaptive=False), with_session(cases[0], speculator)
    sampling = {"structured_outputs": {"regex": "[a-e]{24}"}, "temperature": 1.0, "ignore_eos": False}
    tokens = await decode(engine, prompt, cases[0].name, options, **sampling)
    assert tokens
    assert {row.top_m for r in speculator.requests for row in r.rows} == {0}
    assert gained(before, await engine.decode_stats())["fallbacks"]["broken"] == 0


async def test_a_seed_gives_the_same_answer_however_the_prompt_was_prefilled(engine: VllmTarget) -> None:
    """First in chunks of at most 256 tokens, then in one step from the prefix cache."""
    prompt = kept_prompt(900, 600, seed=300)
    answers = [await decode(engine, prompt, f"seeded-{i}", PLAIN, temperature=1.0, seed=7) for i in range(2)]
    assert answers[0] == answers[1]
    assert answers[0] != await decode(engine, prompt, "other", PLAIN, temperature=1.0, seed=8)


SEEDED: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"structured_outputs": {"regex": "[a-e]{24}"}, "ignore_eos": False},
    {"top_p": 0.9, "top_k": 20, "frequency_penalty": 0.5},
]
"""Changes to the parameters of a sampled request with a seed."""

SEEDED_PROMPT = kept_prompt(300, 65, seed=301)
"""Two whole blocks, which the prefix cache has the second time, and one token: vLLM pads a step of one token."""


async def seeded(engine: VllmTarget, prompt: KeptPrompt, name: str, options: DecodeOptions, **sampling: Any) -> str:
    """The tokens of all n answers."""
    asked = {"temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": True, **sampling}
    answers: dict[int, list[int]] = {}
    async with aclosing(engine.generate(GenerateRequest(name, prompt, asked, decode=options))) as outputs:
        async for output in outputs:
            for part in output.completions:
                answers.setdefault(part.index, []).extend(part.token_ids.tolist())
    return str(sorted(answers.items()))


async def beside_drafts(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, *asked: Coroutine[Any, Any, str]
) -> set[str]:
    """The different answers to requests that come one after the other while others are drafted for."""

    async def load(case: Case) -> None:
        options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
        await decode(engine, with_session(case, speculator), case.name, options, max_tokens=1200)

    others = [asyncio.create_task(load(case)) for case in cases]
    before = await engine.decode_stats()
    answers = {await one for one in asked}
    assert gained(before, await engine.decode_stats())["drafts"] > 0
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return answers


@pytest.mark.parametrize("sampling", SEEDED, ids=lambda one: "-".join(one) or "plain")
async def test_a_seed_without_drafts_gives_one_answer(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator, sampling: dict[str, Any]
) -> None:
    """Alone, after other requests and under load, where vLLM pads what joins a step; its prompt is cached then."""
    alone = [await seeded(engine, SEEDED_PROMPT, f"alone-{i}", PLAIN, **sampling) for i in range(2)]
    tries = (seeded(engine, SEEDED_PROMPT, f"load-{i}", PLAIN, **sampling) for i in range(6))
    assert await beside_drafts(engine, cases[:3], speculator, *tries) == set(alone)
    assert await seeded(engine, SEEDED_PROMPT, "other", PLAIN, **sampling, seed=8) not in alone


async def test_a_seed_with_drafts_gives_several_answers(
    engine: VllmTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    """Negative control: which drafts come and are accepted decides which random numbers are used."""
    prompt = cases[9].prompt
    options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
    drafted = with_session(cases[9], speculator)
    answers = {await seeded(engine, prompt, "alone", PLAIN)}
    answers |= {await seeded(engine, drafted, f"drafted-{i}", options) for i in range(3)}
    assert len(answers) > 1


async def test_a_padded_request_would_use_other_random_numbers(
    engine: BreakableTarget, cases: list[Case], speculator: FakeSpeculator
) -> None:
    """Negative control: with vLLM's padding, the answer under load is another one."""
    alone = await seeded(engine, SEEDED_PROMPT, "alone", PLAIN)
    tries = (seeded(engine, SEEDED_PROMPT, f"padded-{i}", PLAIN) for i in range(3))
    await engine.keep_padding(True)
    answers = await beside_drafts(engine, cases[:3], speculator, *tries)
    await engine.keep_padding(False)
    assert answers != {alone}
