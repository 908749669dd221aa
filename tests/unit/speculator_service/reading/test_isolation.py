"""What windows leave in the engine's prefix cache is found by windows of the same salt alone: its upper layers were
never written."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines import speculator as mock_engine
from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from speculator_service.service import SpeculatorService
from tests.unit.speculator_service.reading.asking import FRAME, asking

SENT = [None, "", "window", "window:", "window:window:", "whole:", "whole:window:"]


async def found(model, first, second):
    """Tokens of a window's prompt that a client finds who sends it as a whole prompt. first, second: the salts of the
    client whose prompt is read in windows, and of the other one."""
    engine, request = MockSpeculator(model, head_profile=True, cache_tokens=10_000, block_size=4), asking(400)
    await SpeculatorService(engine).select(replace(request, cache_salt=first))
    [(end, asked)] = request.layout.questions.tolist()
    parts = [FRAME.head, request.token_ids[:end], FRAME.joint, request.token_ids[end:asked], FRAME.tail]
    ids = np.concatenate(parts).astype(np.int32)
    scores = await engine.score(ScoreRequest("other", ids, SelectionOptions(), cache_salt=second))
    again = await engine.score(ScoreRequest("same", ids, SelectionOptions(), cache_salt=first, window=True))
    assert again.cached_tokens > 350
    return scores.cached_tokens


@pytest.mark.parametrize("first", [None, "window:", "a"])
@pytest.mark.parametrize("second", SENT)
async def test_no_salt_of_a_client_finds_the_windows_of_another(demo_speculator, first, second):
    assert await found(demo_speculator, first, second) == 0


async def test_control_one_prefix_for_windows_alone_lets_a_client_in(demo_speculator, monkeypatch):
    def salted(cache_salt, *, window=False):
        return f"window:{cache_salt or ''}" if window else cache_salt

    monkeypatch.setattr(mock_engine, "engine_salt", salted)
    assert await found(demo_speculator, None, "window:") > 350
