"""Adapters are loaded before the first request. vLLM would read them inside a step, where an error ends the engine."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from kv_transfer.messages import ADAPTER, GenerateRequest
from skim_common.errors import EngineUnavailableError, ModelError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import GREEDY, dense_prompt
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.lora import build_adapter

PROMPT = dense_prompt(120, seed=7)


def for_other_layers(adapter: str, folder: Path, ours: str, theirs: str) -> str:
    """A copy of the adapter for a model that has the name `theirs` where this one has `ours`."""
    copied = Path(shutil.copytree(adapter, folder))
    tensors = load_file(copied / "adapter_model.safetensors")
    renamed = {name.replace(ours, theirs): tensor for name, tensor in tensors.items()}
    save_file(renamed, copied / "adapter_model.safetensors")
    return str(copied)


async def ask(engine: VllmTarget, adapter: str) -> list[int]:
    request = GenerateRequest("r", PROMPT, {**GREEDY, "max_tokens": 8}, engine_args={ADAPTER: adapter})
    return joined([output async for output in engine.generate(request)])[0]


async def test_a_loaded_adapter_is_read_once_and_another_is_refused(start, model, tmp_path):
    """The rank is twice vLLM's default. An adapter that cannot be loaded ends the start, and no engine."""
    good, merged = build_adapter(model, tmp_path, seed=1, rank=32)
    bad = for_other_layers(good, tmp_path / "bad", "q_proj", "c_attn")
    none = for_other_layers(good, tmp_path / "none", "model.layers", "text.layers")
    engine = start(lora_modules=[f"sql={good}", f"bad={bad}", f"none={none}"], max_cpu_loras=1)
    with pytest.raises(ModelError, match=r"the LoRA adapter 'bad' cannot be loaded: .*c_attn"):
        await engine.prepare()
    del engine._adapters["bad"]
    with pytest.raises(ModelError, match="the LoRA adapter 'none' changes no layer of the model"):
        await engine.prepare()
    await engine.check_health()
    shutil.rmtree(good)
    tokens = await ask(engine, "sql")
    assert GenerationOracle(merged).wrong_tokens(PROMPT, tokens) == 0


@pytest.mark.nightly
async def test_control_an_adapter_that_a_request_loads_ends_the_engine(start, model, tmp_path):
    good, _ = build_adapter(model, tmp_path, seed=1)
    bad = for_other_layers(good, tmp_path / "bad", "q_proj", "c_attn")
    engine = start(lora_modules=[f"bad={bad}"])
    with pytest.raises(EngineUnavailableError):
        await ask(engine, "bad")
    with pytest.raises(EngineUnavailableError):
        await engine.check_health()
