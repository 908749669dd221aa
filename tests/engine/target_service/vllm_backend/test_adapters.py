"""LoRA adapters of a target: answers as the merged model's, at restored positions, and no KV of another adapter."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from kv_transfer.messages import ADAPTER, GenerateRequest, KeptPrompt
from skim_common.errors import InvalidRequestError, ModelError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    GREEDY,
    TOLERANCE,
    cached_tokens,
    dense_prompt,
    engine_options,
    kept_prompt,
)
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.lora import build_adapter

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory) -> dict[str, tuple[str, str]]:
    folder = tmp_path_factory.mktemp("lora")
    return {name: build_adapter(model, folder, seed=seed) for seed, name in enumerate(("sql", "legal"), 1)}


@pytest.fixture(scope="module")
def engine(start, adapters) -> VllmTarget:
    modules = [f"{name}={path}" for name, (path, _) in adapters.items()]
    return start(lora_modules=modules, max_loras=2)


@pytest.fixture(scope="module")
def oracles(model, adapters) -> dict[str | None, GenerationOracle]:
    """By adapter; None is the model itself."""
    merged = {name: GenerationOracle(path) for name, (_, path) in adapters.items()}
    return {None: GenerationOracle(model), **merged}


async def answer(engine, prompt, adapter, name="r", **sampling):
    args = {ADAPTER: adapter} if adapter else {}
    request = GenerateRequest(name, prompt, {**GREEDY, **sampling}, engine_args=args)
    return [output async for output in engine.generate(request)]


@pytest.mark.parametrize("prompt", [dense_prompt(300, seed=1), kept_prompt(900, 200, seed=2)], ids=["dense", "kept"])
async def test_an_adapter_answers_as_the_merged_model(engine, oracles, prompt):
    for name, oracle in oracles.items():
        tokens, logprobs, _ = joined(await answer(engine, prompt, name))
        assert oracle.wrong_tokens(prompt, tokens) == 0
        assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE


async def test_control_another_adapter_answers_otherwise(engine, oracles):
    prompt = kept_prompt(900, 200, seed=2)
    tokens, _, _ = joined(await answer(engine, prompt, "sql"))
    for other in (None, "legal"):
        assert oracles[other].wrong_tokens(prompt, tokens) > 16


async def test_requests_of_several_adapters_share_steps(engine, oracles):
    prompts = {name: kept_prompt(700, 180, seed=seed) for seed, name in enumerate(oracles, 20)}
    answers = await asyncio.gather(*(answer(engine, prompts[name], name, f"m-{name}") for name in oracles))
    for (name, oracle), outputs in zip(oracles.items(), answers, strict=True):
        assert oracle.wrong_tokens(prompts[name], joined(outputs)[0]) == 0


async def test_no_adapter_has_the_kv_of_another(engine):
    prompt = kept_prompt(1000, 320, seed=3)
    for name in (None, "sql", "legal"):
        first, again = [(await answer(engine, prompt, name, max_tokens=1))[-1].cached_tokens for _ in range(2)]
        assert [first, again] == [0, *cached_tokens(319)]


async def test_an_answer_is_continued_by_its_adapter(engine, oracles):
    prompt = kept_prompt(800, 150, seed=4)
    tokens, _, _ = joined(await answer(engine, prompt, "legal"))
    begun = KeptPrompt(
        np.concatenate([prompt.token_ids, np.array(tokens[:20], np.int32)]),
        np.concatenate([prompt.positions, np.arange(800, 820, dtype=np.int32)]),
        820,
    )
    request = GenerateRequest("c", begun, GREEDY, engine_args={ADAPTER: "legal"}, answered=20)
    rest, _, _ = joined([output async for output in engine.generate(request)])
    assert tokens[:20] + rest == tokens


async def test_an_unknown_adapter_is_refused(engine):
    with pytest.raises(InvalidRequestError, match="no LoRA adapter 'tax'"):
        await answer(engine, dense_prompt(40), "tax")


def test_a_folder_without_an_adapter_is_refused_before_the_start(model, device, tmp_path: Path):
    with pytest.raises(ModelError, match=r"the LoRA adapter 'sql' has no adapter_config\.json"):
        VllmTarget(model, **engine_options(device), lora_modules=[f"sql={tmp_path}"])
