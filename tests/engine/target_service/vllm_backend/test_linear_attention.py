"""A target with linear attention: refused, or accepted with the approximation that the docs describe.

vLLM's CPU kernels of linear attention compute in bfloat16. So a few tokens may differ from the oracle's.
"""

import pytest

from kv_transfer.messages import KeptPrompt
from skim_common.errors import ModelError, SkimError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    collect,
    dense_prompt,
    engine_options,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle, joined

pytestmark = pytest.mark.nightly

ROUNDED = 8
"""Of 64 tokens, those that bfloat16 may choose differently."""


FAMILY = "qwen3_next"
MODEL = {"head_dim": 32, "layers": 2}


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start(dtype="bfloat16", approximate_positions=True)


def test_it_needs_consent(model: str, device: str) -> None:
    with pytest.raises(ModelError, match=r"set target\.engine_options\.approximate_positions to true"):
        VllmTarget(model, **engine_options(device, dtype="bfloat16"))


def test_drafts_need_a_gpu(model: str, device: str) -> None:
    """A rejected draft would stay in the states: vLLM's own answers with drafts are wrong on CPU."""
    if device == "cuda":
        pytest.skip("a GPU keeps a state for each draft")
    options = engine_options(device, dtype="bfloat16", approximate_positions=True)
    with pytest.raises(SkimError, match=r"needs a GPU for a model with linear attention.*set decode\.method to none"):
        VllmTarget(model, decode={"method": "ngram", "max_draft_tokens": 3}, **options)


async def test_attention_sees_positions_and_linear_attention_a_compact_text(engine: VllmTarget, model: str) -> None:
    oracle = GenerationOracle(model)
    for prompt in (kept_prompt(900, 300, seed=1), kept_prompt(300, 90, seed=2), dense_prompt(400, seed=3)):
        tokens, _, _ = joined(await collect(engine, prompt))
        assert oracle.wrong_tokens(prompt, tokens) <= ROUNDED


async def test_control_positions_that_are_left_out_are_seen(engine: VllmTarget, model: str) -> None:
    prompt = kept_prompt(900, 300, seed=1)
    tokens, _, _ = joined(await collect(engine, prompt))
    numbered_anew = KeptPrompt.dense(prompt.token_ids)
    assert GenerationOracle(model).wrong_tokens(numbered_anew, tokens) > 2 * ROUNDED
