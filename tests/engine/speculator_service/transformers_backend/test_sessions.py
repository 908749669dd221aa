"""Drafting sessions of the transformers speculator: rolled back, branched and restored, against the oracle."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kv_transfer.messages import Int32Array, KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SessionLostError
from speculator_service.factory import create_engine
from speculator_service.transformers_backend.engine import TransformersSpeculator
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.models import build_model, random_prompt
from tests.reference.segments import shuffled

LENGTH = 240
OPTIONS = SelectionOptions(look_ahead=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_model(tmp_path_factory.mktemp("llama"), "llama", head_dim=16, max_position=512)


@pytest.fixture(scope="module")
def oracle(model: str) -> GenerationOracle:
    return GenerationOracle(model)


@pytest.fixture(scope="module")
def engine(model: str, device: str) -> Iterator[TransformersSpeculator]:
    speculator = create_engine("transformers", model, options={"device": device, "max_sessions": 3, "seed": 0})
    assert isinstance(speculator, TransformersSpeculator)
    yield speculator
    speculator.close()


def array(*tokens: int) -> Int32Array:
    return np.array(tokens, np.int32)


FULL = KeptPrompt.dense(random_prompt(LENGTH))
_POSITIONS = np.flatnonzero(np.random.default_rng(0).random(LENGTH) < 0.4).astype(np.int32)
KEPT = KeptPrompt(FULL.token_ids[_POSITIONS], _POSITIONS, LENGTH)


async def open_all(engine: TransformersSpeculator) -> dict[str, KeptPrompt]:
    """One session of each kind: kept after scoring, opened over a dense prompt, and opened over a kept prompt."""
    await engine.score("scored", FULL.token_ids, OPTIONS, keep_session=True)
    await engine.open_session("read", FULL)
    await engine.open_session("kept", KEPT)
    return {"scored": FULL, "read": FULL, "kept": KEPT}


def wrong(oracle: GenerationOracle, prompt: KeptPrompt, answer: Int32Array, drafts: Int32Array) -> int:
    """The number of drafts that differ from plain greedy decoding of prompt + answer."""
    rows = oracle.logprobs(prompt, [*answer.tolist(), *drafts.tolist()])[answer.size :]
    return int((rows.argmax(-1) != torch.from_numpy(drafts)).sum())


async def test_drafts_continue_the_answer_whatever_came_before(
    engine: TransformersSpeculator, oracle: GenerationOracle
) -> None:
    """Random histories: some accepted drafts and another token; sometimes a shortened or a new answer."""
    random = np.random.default_rng(1)
    for session, prompt in (await open_all(engine)).items():
        answer = array()
        for step in range(12):
            drafted = await engine.draft(session, answer, 4)
            assert drafted.tokens.size == 4
            assert wrong(oracle, prompt, answer, drafted.tokens) == 0
            accepted = drafted.tokens[: random.integers(5)]
            answer = np.concatenate([answer, accepted, array(*random.integers(16, 1024, random.integers(1, 3)))])
            if step % 5 == 4:
                answer = answer[: random.integers(answer.size)]


async def test_a_kept_prompt_in_another_order(engine: TransformersSpeculator, oracle: GenerationOracle) -> None:
    prompt, answer = shuffled(KEPT), array(30, 40, 50)
    await engine.open_session("shuffled", prompt)
    drafts = (await engine.draft("shuffled", answer, 8)).tokens
    assert wrong(oracle, prompt, answer, drafts) == 0
    # Negative control: the order of the segments matters.
    assert wrong(oracle, KEPT, answer, drafts) > 0


async def test_scoring_leaves_the_look_ahead_tokens_as_drafts(engine: TransformersSpeculator) -> None:
    scores = await engine.score("scored", FULL.token_ids, OPTIONS, keep_session=True)
    assert (await engine.draft("scored", array(), 4)).tokens.tolist() == scores.look_ahead_tokens


async def test_branches_are_what_single_drafts_are(engine: TransformersSpeculator, oracle: GenerationOracle) -> None:
    for session, prompt in (await open_all(engine)).items():
        answer = array(30, 40, 50)
        drafted = await engine.draft(session, answer, 4, alternatives=3)
        branches = [
            np.append(answer, [*drafted.tokens[:j], token]).astype(np.int32)
            for j in range(5)
            for token in ([71] if j == 4 else drafted.alternative_ids.reshape(4, 3)[j][1:])
        ]
        branches += [array(30, 99), array(), array(30, 40, 50, *drafted.tokens, 17, 18, 19)]
        for _ in range(2):  # the first time leaves no trace
            many = await engine.draft_many(session, branches, 3)
            assert sum(wrong(oracle, prompt, b, d.tokens) for b, d in zip(branches, many, strict=True)) == 0
        assert wrong(oracle, prompt, answer, (await engine.draft(session, answer, 4)).tokens) == 0


async def test_alternatives_are_the_likeliest_tokens(engine: TransformersSpeculator, oracle: GenerationOracle) -> None:
    await open_all(engine)
    drafted = await engine.draft("kept", array(30), 3, alternatives=5)
    probs, ids = oracle.logprobs(KEPT, [30, *drafted.tokens.tolist()])[1:].exp().topk(5)
    assert drafted.alternative_ids.reshape(3, 5).tolist() == ids.tolist()
    assert drafted.alternative_probs.reshape(3, 5) == pytest.approx(probs.numpy(), abs=1e-4)


async def test_q_is_the_sharpened_top_and_what_is_sampled_from(
    engine: TransformersSpeculator, oracle: GenerationOracle
) -> None:
    await open_all(engine)
    drafts = [await engine.draft("scored", array(30), 2, temperature=0.7, top_m=8) for _ in range(300)]
    logprobs = oracle.logprobs(FULL, [30, 0])[1]
    probs, ids = (logprobs / 0.7).softmax(-1).topk(8)
    expected = (probs / probs.sum()).numpy()
    counts = np.zeros(8)
    for drafted in drafts:
        assert drafted.q_ids[:8].tolist() == ids.tolist()
        assert drafted.q_probs[:8] == pytest.approx(expected, abs=1e-4)
        assert drafted.q_probs.reshape(2, 8).sum(1) == pytest.approx(1.0, abs=1e-5)
        assert drafted.tokens[1] in drafted.q_ids[8:]
        counts[drafted.q_ids[:8].tolist().index(drafted.tokens[0])] += 1
    assert np.abs(counts / 300 - expected).max() < 0.12


async def test_sampling_leaves_torchs_generator_alone(engine: TransformersSpeculator) -> None:
    await open_all(engine)
    before = torch.get_rng_state()
    await engine.draft("scored", array(30), 4, temperature=1.0, top_m=8)
    assert torch.equal(before, torch.get_rng_state())


async def test_drafts_end_at_the_models_last_position(engine: TransformersSpeculator) -> None:
    await open_all(engine)
    answer = array(*random_prompt(512 - LENGTH - 2, seed=1))
    assert (await engine.draft("scored", answer, 4)).tokens.size == 2
    assert (await engine.draft("scored", np.append(answer, answer[:2]), 4)).tokens.size == 0


async def test_one_token_is_prompt_enough(engine: TransformersSpeculator, oracle: GenerationOracle) -> None:
    prompt = KeptPrompt.dense([77])
    await engine.score("short", prompt.token_ids, OPTIONS, keep_session=True)
    assert wrong(oracle, prompt, array(30), (await engine.draft("short", array(30), 4)).tokens) == 0


async def test_the_longest_unused_session_makes_room(engine: TransformersSpeculator) -> None:
    await open_all(engine)
    await engine.draft("scored", array(), 1)
    await engine.open_session("fourth", KEPT)
    with pytest.raises(SessionLostError, match="read"):
        await engine.draft("read", array(), 1)
    assert (await engine.draft("scored", array(), 1)).tokens.size == 1
    await engine.close_session("scored")
    await engine.close_session("scored")
    with pytest.raises(SessionLostError):
        await engine.draft("scored", array(), 1)
    await engine.score("plain", FULL.token_ids, OPTIONS)
    with pytest.raises(SessionLostError):
        await engine.draft("plain", array(), 1)


async def test_wrong_tokens_do_not_reach_the_model(engine: TransformersSpeculator) -> None:
    await open_all(engine)
    for token in (-1, 1024):
        with pytest.raises(InvalidRequestError, match=f"token id {token}"):
            await engine.draft("kept", array(token), 1)
    with pytest.raises(InvalidRequestError, match=r"513 tokens .* reads at most 512"):
        await engine.open_session("long", KeptPrompt(array(5), array(0), 513))


async def test_a_cancelled_draft_stops_and_leaves_the_session_right(
    engine: TransformersSpeculator, oracle: GenerationOracle
) -> None:
    await open_all(engine)
    answer = array(30, 40)
    for answers in ([answer], [answer, array(30, 50)]):
        forwards: list[int] = []
        hook = engine._model.register_forward_hook(lambda *_, seen=forwards: seen.append(1))
        long = asyncio.create_task(engine.draft_many("kept", answers, 250))
        await asyncio.sleep(0.05)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert wrong(oracle, KEPT, answer, (await engine.draft("kept", answer, 4)).tokens) == 0
        hook.remove()
        assert 4 < len(forwards) < 250


async def test_closing_ends_drafting(model: str, device: str) -> None:
    speculator = create_engine("transformers", model, options={"device": device})
    await speculator.open_session("a", KEPT)
    speculator.close()
    with pytest.raises(EngineUnavailableError):
        await speculator.draft("a", array(), 1)
    await speculator.close_session("a")
