import asyncio

import numpy as np
import pytest
import torch

from kv_transfer.errors import EngineUnavailableError, InvalidRequestError, ModelError
from kv_transfer.messages import SelectionOptions
from speculator_service.engine import create_engine

IDS = np.array([3, 900, 17, 3], np.int32)
OPTIONS = SelectionOptions(look_ahead=4)


def mock(model, **options):
    return create_engine("mock", model, options=options)


async def test_same_ids_same_scores(demo_speculator):
    first, second = mock(demo_speculator), mock(demo_speculator)
    one, two = await first.score("a", IDS, OPTIONS), await second.score("b", IDS, OPTIONS)
    assert torch.equal(one.importance, two.importance)
    assert one.look_ahead_tokens == two.look_ahead_tokens
    assert one.importance.dtype == torch.float32
    assert one.importance[0] == one.importance[3]
    assert len(set(one.importance.tolist())) == 3
    assert len(one.look_ahead_tokens) == 4
    assert all(0 <= t < first.info.vocab_size for t in one.look_ahead_tokens)
    assert first.info.engine == "mock"
    assert (first.started, first.aborted, first.running) == (1, 0, 0)


async def test_scores_spread_over_the_vocabulary(demo_speculator):
    importance = (await mock(demo_speculator).score("a", np.arange(1024, dtype=np.int32), OPTIONS)).importance
    assert len(set(importance.tolist())) == 1024
    assert 0 <= importance.min() < 0.01
    assert 0.99 < importance.max() < 1


async def test_fails_as_often_as_it_was_told(demo_speculator):
    engine = mock(demo_speculator, fail_every=2)
    results = await asyncio.gather(*(engine.score("a", IDS, OPTIONS) for _ in range(4)), return_exceptions=True)
    assert [isinstance(r, EngineUnavailableError) for r in results] == [False, True, False, True]


async def test_latency_grows_with_the_prompt(demo_speculator, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await mock(demo_speculator, latency_ms=5, ms_per_token=2).score("a", IDS, OPTIONS)
    assert slept == [pytest.approx(0.013)]


async def test_limits_and_close(demo_speculator):
    engine = mock(demo_speculator, max_model_len=8)
    await engine.score("a", IDS, OPTIONS)
    with pytest.raises(InvalidRequestError, match="4 tokens and 5 look-ahead"):
        await engine.score("a", IDS, SelectionOptions(look_ahead=5))
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailableError):
        await engine.check_health()
    with pytest.raises(EngineUnavailableError):
        await engine.score("a", IDS, OPTIONS)


def test_no_model(tmp_path):
    with pytest.raises(ModelError):
        mock(str(tmp_path / "missing"))
