"""The mock fulfils the engine's interface: streams, stops, output kinds, failures, counts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.mock_engines.target import MockTarget, mock_tokens
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, SessionHandle
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from target_service.engine import create_engine
from tests.unit.kv_transfer.channel_peer import serving

MODEL = str(Path(__file__).parents[4] / "demo_models" / "target")
PROMPT = KeptPrompt(np.array([20, 21, 22], np.int32), np.array([0, 4, 9], np.int32), 10)


@pytest.fixture(scope="module")
def target() -> MockTarget:
    return MockTarget(MODEL)


async def collect(target: MockTarget, sampling: dict, prompt: KeptPrompt = PROMPT) -> list[GenerateOutput]:
    return [o async for o in target.generate(GenerateRequest("r", prompt, sampling))]


def tokens_of(outputs: list[GenerateOutput], index: int = 0) -> list[int]:
    return [int(t) for o in outputs for c in o.completions if c.index == index for t in c.token_ids]


def text_of(outputs: list[GenerateOutput], index: int = 0) -> str:
    return "".join(c.text for o in outputs for c in o.completions if c.index == index)


@settings(max_examples=25, deadline=None)
@given(max_tokens=st.integers(1, 40), n=st.integers(1, 3))
def test_deltas_add_up_to_the_final_output(target: MockTarget, max_tokens: int, n: int) -> None:
    deltas, cumulative, final = (
        asyncio.run(collect(target, {"max_tokens": max_tokens, "n": n, "output_kind": kind})) for kind in (1, 0, 2)
    )
    assert [o.finished for o in deltas] == [False] * (max_tokens - 1) + [True]
    assert [o.finished for o in cumulative] == [o.finished for o in deltas]
    assert [c.index for c in final[0].completions] == list(range(n))
    for c in final[0].completions:
        assert c.token_ids.tolist() == tokens_of(deltas, c.index) == tokens_of(cumulative[-1:], c.index)
        assert c.text == text_of(deltas, c.index) == text_of(cumulative[-1:], c.index)
        assert c.finish_reason == "length"
    assert len(final) == 1


async def test_the_answer_depends_on_ids_positions_and_context(target: MockTarget) -> None:
    moved = KeptPrompt(PROMPT.token_ids, np.array([0, 5, 9], np.int32), 10)
    longer = KeptPrompt(PROMPT.token_ids, PROMPT.positions, 11)
    answers = [tokens_of(await collect(target, {"max_tokens": 12}, p)) for p in (PROMPT, PROMPT, moved, longer)]
    assert answers[0] == answers[1] == mock_tokens(PROMPT, 12, target.info.vocab_size).tolist()
    assert answers[0] != answers[2]
    assert answers[0] != answers[3]


async def test_stop_token_and_stop_string_end_the_answer(target: MockTarget) -> None:
    whole = await collect(target, {"max_tokens": 30})
    ids, text = tokens_of(whole), text_of(whole)
    [by_token] = await collect(target, {"max_tokens": 30, "stop_token_ids": [ids[9]], "output_kind": 2})
    stopped = by_token.completions[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ids[9])
    assert stopped.token_ids.tolist() == ids[: ids.index(ids[9]) + 1]
    stop = text[12:15]
    by_string = await collect(target, {"max_tokens": 30, "stop": [stop]})
    assert text_of(by_string) == text[: text.index(stop)]
    assert by_string[-1].completions[0].stop_reason == stop


async def test_outputs_come_at_the_stream_interval(target: MockTarget) -> None:
    """The first token at once, then every 5 tokens, then the end; a continued answer counts from what was sent."""
    whole = await collect(target, {"max_tokens": 13, "n": 2})
    rare = await collect(target, {"max_tokens": 13, "n": 2, "stream_interval": 5})
    assert [[c.token_ids.size for c in o.completions] for o in rare] == [[1, 1], [5, 5], [5, 5], [2, 2]]
    for index in range(2):
        assert (tokens_of(rare, index), text_of(rare, index)) == (tokens_of(whole, index), text_of(whole, index))


@pytest.mark.parametrize("cut", [1, 4, 17, 29])
async def test_an_answer_that_has_begun_goes_on(target: MockTarget, cut: int) -> None:
    """Its tokens depend on the whole answer so far, so a wrong token before the cut changes what follows."""
    sampling = {"max_tokens": 30, "logprobs": 0, "stop": ["never said, so that text is held back"]}
    whole = await collect(target, sampling)
    ids = tokens_of(whole)

    async def rest(answer: list[int]) -> list[GenerateOutput]:
        request = GenerateRequest("r", PROMPT.extended(answer), sampling, answered=len(answer))
        return [o async for o in target.generate(request)]

    told = await rest(ids[:cut])
    assert tokens_of(told) == ids[cut:]
    assert text_of(told) == text_of(whole[cut:])
    assert [len(c.logprobs) for o in told for c in o.completions] == [1] * (30 - cut)
    wrong = await rest([*ids[: cut - 1], (ids[cut - 1] + 1) % target.info.vocab_size])
    assert tokens_of(wrong) != ids[cut:]


async def test_logprobs_when_asked(target: MockTarget) -> None:
    [output] = await collect(target, {"max_tokens": 3, "logprobs": 1, "output_kind": 2})
    rows = output.completions[0].logprobs
    assert rows is not None
    assert [row[0].token_id for row in rows] == output.completions[0].token_ids.tolist()
    dense = await collect(target, {"max_tokens": 1, "prompt_logprobs": 0}, KeptPrompt.dense([20, 21]))
    assert dense[0].prompt_logprobs is not None
    assert dense[0].prompt_logprobs[0] is None
    [told] = dense[0].prompt_logprobs[1] or []
    assert told.token_id == 21


async def test_timings_are_on_the_first_output_alone() -> None:
    outputs = await collect(MockTarget(MODEL, prefill_ms=2, prefill_ms_per_token=1), {"max_tokens": 3})
    assert [dict(o.timings) for o in outputs] == [{"queue": 0.0, "prefill": 5.0}, {}, {}]


async def test_fails_before_the_first_token_as_often_as_configured() -> None:
    target = MockTarget(MODEL, fail_before_first=2)
    for _ in range(2):
        with pytest.raises(EngineUnavailableError):
            await collect(target, {"max_tokens": 2})
    assert len(await collect(target, {"max_tokens": 2})) == 2
    assert (target.started, target.running, target.aborted) == (3, 0, 0)


async def test_closing_and_cancelling_count_as_aborted() -> None:
    target = MockTarget(MODEL, decode_ms=1)
    stream = target.generate(GenerateRequest("r", PROMPT, {"max_tokens": 1000}))
    await anext(stream)
    assert (target.running, target.aborted) == (1, 0)
    await stream.aclose()
    assert (target.running, target.aborted) == (0, 1)
    task = asyncio.create_task(collect(target, {"max_tokens": 1000}))
    await asyncio.sleep(0)  # the task runs up to its first wait
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (target.started, target.running, target.aborted) == (2, 0, 2)


async def test_refuses_what_the_engines_refuse(target: MockTarget) -> None:
    limit = target.info.max_position
    with pytest.raises(InvalidRequestError, match=f"{limit + 6}.*{limit}"):
        await collect(target, {"max_tokens": limit - 4})
    with pytest.raises(InvalidRequestError, match="max_model_len"):
        await collect(MockTarget(MODEL, max_model_len=8), {"max_tokens": 6})
    with pytest.raises(InvalidRequestError, match="top_p"):
        await collect(target, {"top_p": 3.0})


async def test_create_engine_knows_the_mock() -> None:
    engine = create_engine("mock", MODEL, options={"max_model_len": 64})
    assert (engine.info.engine, engine.info.max_model_len) == ("mock", 64)
    await engine.check_health()
    engine.close()


async def test_the_next_turn_finds_prompt_and_answer_at_their_positions() -> None:
    target = MockTarget(MODEL, prefill_ms_per_token=0.01, cache_tokens=4096, block_size=1)
    answer = tokens_of(await collect(target, {"max_tokens": 5}))
    ids = np.array([*PROMPT.token_ids, *answer, 30, 31], np.int32)
    following = np.arange(10, 17, dtype=np.int32)
    [first, *_] = await collect(
        target, {"max_tokens": 1}, KeptPrompt(ids, np.append(PROMPT.positions, following).astype(np.int32), 17)
    )
    assert first.cached_tokens == 3 + 4  # the KV of the answer's last token is not computed
    assert first.timings["prefill"] == pytest.approx(0.03)
    [moved, *_] = await collect(
        target, {"max_tokens": 1}, KeptPrompt(ids, np.append(PROMPT.positions, following + 1).astype(np.int32), 18)
    )
    assert moved.cached_tokens == 3, "the same tokens at other positions are other KV"


async def test_an_answer_that_began_ends_its_session_once() -> None:
    """Whether it is complete or aborted. The router ends the session of an answer that did not begin."""
    ended: list[str] = []

    async def drafter(request: DraftRequest) -> DraftReply:
        ended.extend(request.closed)
        return DraftReply()

    def asked(address: str, name: str) -> GenerateRequest:
        return GenerateRequest(name, replace(PROMPT, session=SessionHandle(address, name)), {"max_tokens": 3})

    with serving(drafter) as address:
        target = MockTarget(MODEL, fail_before_first=1, draft_channel={"deadline_s": 60})
        with pytest.raises(EngineUnavailableError):
            await anext(target.generate(asked(address, "failed")))
        assert [output.finished async for output in target.generate(asked(address, "complete"))][-1]
        aborted = target.generate(asked(address, "aborted"))
        await anext(aborted)
        await aborted.aclose()
        await asyncio.to_thread(target.close)
    assert ended == ["complete", "aborted"]
