import asyncio

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, InvalidRequestError, ModelError, SessionLostError
from speculator_service.engine import ScoreRequest, create_engine

IDS = np.array([3, 900, 17, 3], np.int32)
OPTIONS = SelectionOptions(look_ahead=4)


def mock(model, **options):
    return create_engine("mock", model, options=options)


async def test_same_ids_same_scores(demo_speculator):
    first, second = mock(demo_speculator), mock(demo_speculator)
    one, two = await first.score(ScoreRequest("a", IDS, OPTIONS)), await second.score(ScoreRequest("b", IDS, OPTIONS))
    assert np.array_equal(one.importance, two.importance)
    assert one.look_ahead_tokens == two.look_ahead_tokens
    assert one.importance.dtype == np.float32
    assert one.importance[0] == one.importance[3]
    assert len(set(one.importance.tolist())) == 3
    assert len(one.look_ahead_tokens) == 4
    assert all(0 <= t < first.info.vocab_size for t in one.look_ahead_tokens)
    assert first.info.engine == "mock"
    assert (first.started, first.aborted, first.running) == (1, 0, 0)


async def test_scores_spread_over_the_vocabulary(demo_speculator):
    importance = (
        await mock(demo_speculator).score(ScoreRequest("a", np.arange(1024, dtype=np.int32), OPTIONS))
    ).importance
    assert len(set(importance.tolist())) == 1024
    assert 0 <= importance.min() < 0.01
    assert 0.99 < importance.max() < 1


async def test_fails_as_often_as_configured(demo_speculator):
    engine = mock(demo_speculator, fail_every=2)
    results = await asyncio.gather(
        *(engine.score(ScoreRequest("a", IDS, OPTIONS)) for _ in range(4)), return_exceptions=True
    )
    assert [isinstance(r, EngineUnavailableError) for r in results] == [False, True, False, True]


async def test_latency_grows_with_the_prompt(demo_speculator, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await mock(demo_speculator, latency_ms=5, ms_per_token=2).score(ScoreRequest("a", IDS, OPTIONS))
    assert slept == [pytest.approx(0.013)]


async def test_a_cached_question_is_computed_again_and_decodes_nothing(demo_speculator):
    engine = mock(demo_speculator, cache_tokens=1024, block_size=4, ms_per_look_ahead=1)
    prompt, question = np.arange(64, dtype=np.int32), (50, 58)
    for options, computed in ((OPTIONS, 64), (OPTIONS, 4), (SelectionOptions(scoring="heads"), 14)):
        before = engine.compute.computed_tokens
        scores = await engine.score(ScoreRequest("a", prompt, options, questions=(question,)))
        assert engine.compute.computed_tokens - before == computed
        assert len(scores.look_ahead_tokens) == options.tokens_ahead
    assert options.tokens_ahead == 0


async def test_limits_and_close(demo_speculator):
    engine = mock(demo_speculator, max_model_len=8)
    await engine.score(ScoreRequest("a", IDS, OPTIONS))
    with pytest.raises(InvalidRequestError, match="4 tokens and look_ahead is 5"):
        await engine.score(ScoreRequest("a", IDS, SelectionOptions(look_ahead=5)))
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailableError):
        await engine.check_health()
    with pytest.raises(EngineUnavailableError):
        await engine.score(ScoreRequest("a", IDS, OPTIONS))


NO_ANSWER = np.empty(0, np.int32)


async def test_drafts_continue_like_the_look_ahead_tokens(demo_speculator):
    engine = mock(demo_speculator, max_model_len=10)
    tokens = (await engine.score(ScoreRequest("a", IDS, OPTIONS, keep_session=True))).look_ahead_tokens
    await engine.open_session("b", KeptPrompt.dense(IDS))
    for session in ("a", "b"):
        drafted = await engine.draft(session, NO_ANSWER, 4)
        assert drafted.tokens.tolist() == tokens
    assert (await engine.draft("a", np.array(tokens[:2], np.int32), 9)).tokens.size == 4  # the model's last position
    assert (await engine.draft("a", np.array(tokens[:1], np.int32), 2)).tokens.tolist() == tokens[1:3]


async def test_sampled_drafts_are_in_q(demo_speculator):
    engine = mock(demo_speculator, seed=0)
    await engine.score(ScoreRequest("a", IDS, OPTIONS, keep_session=True))
    drafted = await engine.draft("a", NO_ANSWER, 5, temperature=0.5, top_m=3)
    ids, probs = drafted.q_ids.reshape(5, 3), drafted.q_probs.reshape(5, 3)
    assert all(token in row for token, row in zip(drafted.tokens, ids, strict=True))
    assert probs[0] == pytest.approx(np.array([16, 4, 1]) / 21)  # halves, sharpened by the temperature


async def test_only_kept_sessions_exist(demo_speculator):
    engine = mock(demo_speculator)
    await engine.score(ScoreRequest("a", IDS, OPTIONS))
    await engine.score(ScoreRequest("b", IDS, OPTIONS, keep_session=True))
    await engine.close_session("b")
    await engine.close_session("b")
    for session in ("a", "b"):
        with pytest.raises(SessionLostError):
            await engine.draft(session, NO_ANSWER, 1)


def test_no_model(tmp_path):
    with pytest.raises(ModelError):
        mock(str(tmp_path / "missing"))


async def test_a_cached_prompt_takes_the_time_of_its_look_ahead_alone(demo_speculator):
    engine = mock(demo_speculator, ms_per_token=0.01, ms_per_look_ahead=1, cache_tokens=4096, block_size=4)
    prompt, options = np.arange(400, dtype=np.int32), SelectionOptions(look_ahead=2)
    times = []
    for salt in (None, None, "other"):
        times.append((await engine.score(ScoreRequest("a", prompt, options, cache_salt=salt))).timings["speculate"])
    assert times == pytest.approx([6.0, 2.04, 6.0])  # the last block holds the last token, which is always computed
    assert (engine.compute.cached_tokens, engine.compute.computed_tokens) == (396, 804)


async def test_the_next_turn_finds_prompt_and_look_ahead(demo_speculator):
    engine = mock(demo_speculator, cache_tokens=4096, block_size=1)
    prompt = np.arange(100, dtype=np.int32)
    tokens = (await engine.score(ScoreRequest("a", prompt, OPTIONS))).look_ahead_tokens
    before = engine.compute.cached_tokens
    await engine.score(ScoreRequest("b", np.array([*prompt, *tokens, 7, 8], np.int32), OPTIONS))
    assert engine.compute.cached_tokens - before == 100 + len(tokens) - 1
