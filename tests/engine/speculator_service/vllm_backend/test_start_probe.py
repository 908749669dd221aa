"""What a speculator does at its start, on real weights: it finds its heads, trusts right scores, sees a broken hook."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speculator_service.start.find_heads import COUNT, DEPTH, find_heads
from speculator_service.start.probe import find_failure
from speculator_service.vllm_backend.engine import VllmSpeculator
from tests.engine.speculator_service.vllm_backend.conftest import keys_of_other_layers

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def engine(smollm2: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1280, "num_gpu_blocks_override": 64}
        engine = VllmSpeculator(str(smollm2), **options)
        yield engine
        engine.close()


async def test_a_healthy_speculator(engine, smollm2):
    assert await find_failure(engine, str(smollm2)) is None


async def test_keys_of_other_layers(engine, smollm2):
    async with keys_of_other_layers(engine):
        failure = await find_failure(engine, str(smollm2))
    assert "is not among the best sixth" in failure


async def test_scores_of_other_tokens(engine, smollm2, monkeypatch):
    """As of a hook that is one chunk of the prompt behind."""
    score = engine.score

    async def behind(request):
        scores = await score(request)
        return replace(scores, importance=np.roll(scores.importance, 32))

    monkeypatch.setattr(engine, "score", behind)
    assert "is not among the best sixth" in await find_failure(engine, str(smollm2))


async def test_heads_are_found_and_pass_the_probe_by_themselves(engine, smollm2):
    packaged = engine._profile
    engine.use_heads(None)
    try:
        found = await find_heads(engine, str(smollm2))
        assert await find_failure(engine, str(smollm2), heads_alone=True) is None
    finally:
        engine.use_heads(packaged)
    assert len(found.heads) == COUNT
    assert max(head.layer for head in found.heads) < DEPTH * 30
    assert found.fingerprint == packaged.fingerprint


async def test_control_scores_of_other_tokens_find_no_heads(engine, smollm2, monkeypatch):
    head_masses = engine.head_masses

    async def behind(*asked):
        names, masses = await head_masses(*asked)
        return names, masses.roll(32, -1)

    packaged = engine._profile
    monkeypatch.setattr(engine, "head_masses", behind)
    engine.use_heads(None)
    try:
        found = await find_heads(engine, str(smollm2))
        assert found is None or found.heads != packaged.heads
        assert engine.info.has_head_profile == (found is not None)
    finally:
        engine.use_heads(packaged)
