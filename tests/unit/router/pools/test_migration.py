"""Answers go on when their target replica is lost: no gap, no repeated token, the same outputs as undisturbed."""

import asyncio
import random
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from benchmarks.mock_engines.target import MockTarget
from kv_transfer.messages import (
    DELTA,
    FINAL_ONLY,
    Completion,
    Envelope,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    TokenLogprob,
)
from router.pools.migration import AnswerRecord, Migration, ReplicaLostError, migrate
from skim_common.errors import EngineUnavailableError
from tests.unit.router.conftest import MODELS, until
from tests.unit.router.lost_replicas import PROMPT, Replicas, run, told


@pytest.fixture(scope="module")
def engine() -> MockTarget:
    return MockTarget(str(MODELS / "target"))


SAMPLINGS = {
    "plain": {},
    "logprobs": {"logprobs": 1},
    "short": {"max_tokens": 3},
}


@pytest.mark.parametrize("kind", [DELTA, FINAL_ONLY])
@pytest.mark.parametrize("name", SAMPLINGS)
async def test_the_outputs_are_those_of_an_undisturbed_run(engine: MockTarget, name: str, kind: int) -> None:
    """Lost after any number of outputs, up to four times in one answer: by death once."""
    sampling = {"max_tokens": 20, **SAMPLINGS[name], "output_kind": kind}
    undisturbed = Replicas(engine)
    quiet, moves = await run(undisturbed, **sampling)
    assert not moves
    for lives in ([0], [1], [2], [19], [1, 1, 1, 1], [3, 5, 1, 4]):
        causes = ["died", *["drained"] * len(lives)]
        outputs, moves = await run(Replicas(engine, *lives, causes=causes), **sampling)
        assert bool(moves) == (lives[0] < undisturbed.sent)
        assert told(outputs, kind) == told(quiet, kind)
        assert [o.finished for o in outputs].index(True) == len(outputs) - 1


async def test_each_cut_of_an_answer_with_stop_strings_and_split_characters(engine: MockTarget) -> None:
    """The mock's random tokens split characters over tokens; the text that is held back joins exactly."""
    [first], _ = await run(Replicas(engine), max_tokens=60, output_kind=FINAL_ONLY)
    text = first.completions[0].text
    sampling = {"max_tokens": 60, "stop": [text[40:52], "never said"]}
    quiet, _ = await run(Replicas(engine), **sampling)
    assert told(quiet)[0][1] == text[: text.index(text[40:52])]
    for cut in range(1, len(quiet)):
        outputs, moves = await run(Replicas(engine, cut), **sampling)
        assert (told(outputs), moves) == (told(quiet), [Migration("died", cut)])


async def test_the_next_replica_gets_the_prompt_and_the_tokens_so_far(engine: MockTarget) -> None:
    replicas = Replicas(engine, 4)
    outputs, _ = await run(replicas, max_tokens=9, prompt_logprobs=None, temperature=0.0)
    tokens = told(outputs)[0][0]
    first, second = replicas.requests
    assert (first.answered, second.answered) == (0, 4)
    assert second.prompt.token_ids.tolist() == [20, 21, 22, *tokens[:4]]
    assert second.prompt.positions.tolist() == [0, 4, 9, 10, 11, 12, 13]
    assert second.prompt.context_length == 14
    assert second.sampling == {"max_tokens": 9, "temperature": 0.0}
    prompt, answer = second.prompt_and_answer()
    assert (prompt.positions.tolist(), prompt.context_length) == ([0, 4, 9], 10)
    assert answer.tolist() == tokens[:4]


async def test_a_gap_or_a_repeated_token_would_show(engine: MockTarget) -> None:
    """Negative control of the tests above: with one token less or more, the mock's answer goes on differently."""
    quiet, _ = await run(Replicas(engine), max_tokens=20)

    class Forgetful(Replicas):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
            if request.answered:
                wrong = request.prompt.token_ids.copy()
                wrong[-1] = (wrong[-1] + 1) % 500
                request = GenerateRequest(
                    "r",
                    KeptPrompt(wrong, request.prompt.positions, request.prompt.context_length),
                    request.sampling,
                    answered=request.answered,
                )
            async for output in super().generate(request):
                yield output

    outputs, _ = await run(Forgetful(engine, 5), max_tokens=20)
    assert told(outputs) != told(quiet)


async def test_nothing_is_asked_when_the_replica_is_lost_after_the_end(engine: MockTarget) -> None:
    class Late(Replicas):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
            async for output in super().generate(request):
                yield output
            raise ReplicaLostError("died", accepted=True)

    replicas = Late(engine)
    outputs, moves = await run(replicas, max_tokens=5)
    assert (len(replicas.requests), moves, outputs[-1].finished) == (1, [], True)


def scripted(*lives: list[GenerateOutput] | Exception):
    """An attempt that plays these outputs or errors, one per attempt. Also returns the requests."""
    left, requests = list(lives), []

    async def generate(request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        requests.append(request)
        for step in left.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step

    return generate, requests


def output(*ids: int, cumulative: float | None = None, reason: str | None = None, **fields: object):
    logprobs = None if cumulative is None else [[TokenLogprob(id, -1.0)] for id in ids]
    completion = Completion(0, "x", np.array(ids, np.int32), logprobs, cumulative, reason)
    return GenerateOutput([completion], reason is not None, **fields)


DIED = ReplicaLostError("died", accepted=True)


@pytest.mark.parametrize("kind", [DELTA, FINAL_ONLY])
async def test_once_only_fields_come_from_the_first_output_and_probabilities_add_up(kind: int) -> None:
    """prompt_logprobs, times and cached tokens are those of the replica that read the prompt first."""
    prompt_logprobs = [None, [TokenLogprob(21, -1.0)], [TokenLogprob(22, -1.0)]]
    first = output(5, cumulative=-2.0, cached_tokens=2, timings={"prefill": 7.0}, prompt_logprobs=prompt_logprobs)
    again = output(6, cumulative=-1.0, cached_tokens=3, timings={"prefill": 9.0})
    generate, requests = scripted([first, DIED], [again, output(7, cumulative=-1.5, reason="length")])
    request = GenerateRequest(
        "r", KeptPrompt.dense([1, 2, 3]), {"output_kind": kind, "prompt_logprobs": 0, "logprobs": 0}
    )
    outputs = [o async for o in migrate(AnswerRecord(request), generate, lambda move: None)]
    assert [o.cached_tokens for o in outputs] == [2] * len(outputs)
    assert [dict(o.timings) for o in outputs] == [{"prefill": 7.0}, {}, {}][: len(outputs)]
    assert outputs[0].prompt_logprobs == prompt_logprobs
    assert outputs[-1].completions[0].cumulative_logprob == -3.5
    assert requests[1].sampling.get("prompt_logprobs") is None
    if kind != DELTA:
        assert outputs[-1].completions[0].token_ids.tolist() == [5, 6, 7]
        assert len(outputs[-1].completions[0].logprobs) == 3


async def test_cached_tokens_that_only_the_first_output_tells_are_not_lost() -> None:
    generate, _ = scripted([output(5, cached_tokens=2), output(6), output(7, reason="length")])
    request = GenerateRequest("r", KeptPrompt.dense([1, 2, 3]), {"output_kind": FINAL_ONLY})
    outputs = [o async for o in migrate(AnswerRecord(request), generate, lambda move: None)]
    assert [o.cached_tokens for o in outputs] == [2] * len(outputs)


async def test_the_seed_stays(engine: MockTarget) -> None:
    """The next replica goes on with the random numbers that come after those of the tokens so far."""
    replicas = Replicas(engine, 3, 2, causes=["died", "drained"])
    _, moves = await run(replicas, max_tokens=12, seed=7, temperature=0.8)
    assert moves == [Migration("died", 3), Migration("drained", 5)]
    assert [request.sampling["seed"] for request in replicas.requests] == [7, 7, 7]


async def test_other_errors_are_the_callers(engine: MockTarget) -> None:
    generate, requests = scripted([output(1), EngineUnavailableError("the engine failed")])
    with pytest.raises(EngineUnavailableError, match="the engine failed"):
        _ = [o async for o in migrate(AnswerRecord(GenerateRequest("r", PROMPT)), generate, lambda move: None)]
    assert len(requests) == 1


async def test_a_client_that_hangs_up_ends_every_attempt() -> None:
    slow = MockTarget(str(MODELS / "target"), decode_ms=1.0)
    replicas = Replicas(slow, 3)
    record = AnswerRecord(GenerateRequest("r", PROMPT, {"max_tokens": 10**3}))
    stream = migrate(record, replicas.generate, lambda m: None)
    async for _ in stream:
        if len(replicas.requests) == 2:
            break
    assert replicas.open == 1
    await stream.aclose()
    assert replicas.open == 0


async def test_a_client_that_hangs_up_between_two_replicas() -> None:
    reached = asyncio.Event()

    async def generate(request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        if request.answered:
            reached.set()
            await asyncio.Event().wait()
        yield output(1)
        raise DIED

    async def client() -> None:
        async for _ in migrate(AnswerRecord(GenerateRequest("r", PROMPT)), generate, lambda move: None):
            pass

    task = asyncio.create_task(client())
    await until(reached.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("requests", [40, pytest.param(400, marks=pytest.mark.nightly)])
async def test_random_histories_lose_nothing(engine: MockTarget, requests: int) -> None:
    """With random fields and random losses."""
    rng = random.Random(11)
    for _ in range(requests):
        kind = rng.choice([DELTA, FINAL_ONLY])
        sampling = {"max_tokens": rng.randint(1, 25), "output_kind": kind}
        quiet, _ = await run(Replicas(engine), **sampling)
        lives = [rng.randint(1, 8) for _ in range(rng.randint(1, 6))]
        causes = ["drained"] * len(lives)
        causes[rng.randrange(len(lives))] = "died"
        outputs, _ = await run(Replicas(engine, *lives, causes=causes), **sampling)
        assert told(outputs, kind) == told(quiet, kind), (sampling, lives)


async def test_a_replica_of_another_release_is_not_preferred_again(engine: MockTarget) -> None:
    replicas, moves = Replicas(engine, None, None, causes="refused"), list[Migration]()
    request = GenerateRequest("r", PROMPT, {"max_tokens": 2}, envelope=Envelope(affinity="prefix"))
    async for _ in migrate(AnswerRecord(request), replicas.generate, moves.append):
        pass
    assert [asked.envelope.affinity for asked in replicas.requests] == ["prefix", "", ""]
    assert moves == [Migration("refused", 0)] * 2
    gone = Replicas(engine, None, None, None, causes="refused")
    with pytest.raises(EngineUnavailableError, match="try again in a moment"):
        await run(gone)


@pytest.mark.parametrize(("life", "asked"), [(0, 2), (2, 1)])
async def test_several_answers_begin_again_and_are_not_continued(engine: MockTarget, life: int, asked: int) -> None:
    replicas = Replicas(engine, life)
    if life:
        with pytest.raises(ReplicaLostError):
            await run(replicas, n=3, max_tokens=5)
    else:
        assert len(told((await run(replicas, n=3, max_tokens=5))[0])) == 3
    assert len(replicas.requests) == asked


@pytest.mark.parametrize("kind", [DELTA, FINAL_ONLY])
async def test_the_tokens_of_the_first_answer(engine: MockTarget, kind: int) -> None:
    record = AnswerRecord(GenerateRequest("r", PROMPT, {"max_tokens": 40, "output_kind": kind}))
    sizes = [record.first_token_ids.size]
    async for output in engine.generate(record.asked):
        record.add(output)
        sizes.append(record.first_token_ids.size)
    assert sizes[:2] == [0, 1]
    [answer], _ = await run(Replicas(engine), max_tokens=40, output_kind=FINAL_ONLY)
    assert np.array_equal(record.first_token_ids, answer.completions[0].token_ids)
