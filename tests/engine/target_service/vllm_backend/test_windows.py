"""A target with sliding-window layers: its windows count kept tokens, and all its layers see the original positions."""

import asyncio

import pytest

from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    assert_right,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import WINDOW
from tests.reference.segments import shuffled

pytestmark = pytest.mark.nightly

FAMILY = "gemma3"
MODEL = {"head_dim": 32}


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start()


async def test_windows_count_kept_tokens(engine: VllmTarget, model: str) -> None:
    """Prompts shorter and longer than a window, dense and kept; the longer ones are prefilled in chunks."""
    oracle = GenerationOracle(model, window_counts="tokens")
    prompts = [
        kept_prompt(900, 300, seed=1),
        kept_prompt(300, WINDOW - 20, seed=2),
        dense_prompt(500, seed=3),
        kept_prompt(900, 310, seed=1, lead_in=100),
        shuffled(kept_prompt(900, 300, seed=4)),
    ]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"window-{i}") for i, p in enumerate(prompts)))


async def test_control_windows_that_count_positions_are_seen(engine: VllmTarget, model: str) -> None:
    prompt = kept_prompt(900, 300, seed=1)
    tokens, _, _ = joined(await collect(engine, prompt))
    assert GenerationOracle(model, window_counts="positions").wrong_tokens(prompt, tokens) > 16
