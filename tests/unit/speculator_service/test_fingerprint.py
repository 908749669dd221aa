"""By what a model is known again: its norms in any float type; not by its other weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from skim_common.errors import ModelError
from skim_common.models.info import inspect_model
from speculator_service.model import model_fingerprint

DEMO = Path(__file__).parents[3] / "demo_models" / "speculator"
NORM = torch.tensor([0.5, 1.25, -3.0]).bfloat16()
LAYER = "model.layers.0.input_layernorm.weight"


@pytest.fixture
def model(tmp_path):
    """model(tensors, **config) -> the fingerprint of a folder with these weights."""

    def fingerprint(tensors, **config):
        shutil.copytree(DEMO, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**json.loads((DEMO / "config.json").read_text()), **config}))
        if tensors:
            save_file(tensors, tmp_path / "model.safetensors")
        return model_fingerprint(inspect_model(str(tmp_path), engine="vllm"))

    return fingerprint


def test_quantised_weights_and_other_float_types_are_the_same_model(model):
    norm, more = {"model.norm.weight": NORM}, torch.ones(3)
    known = model(norm | {LAYER: NORM.clone(), "lm_head.weight": torch.ones(2, 2)})
    assert model(norm | {LAYER: more, "lm_head.weight": torch.zeros(2, 2)}) == known
    for dtype in (torch.float32, torch.float16):
        assert model({"model.norm.weight": NORM.to(dtype)}) == known


def test_other_training_and_other_sizes_are_another_model(model):
    known = model({"model.norm.weight": NORM})
    assert model({"model.norm.weight": NORM + 0.5}) != known
    assert model({"model.norm.weight": NORM}, num_hidden_layers=7) != known
    assert model({"model.norm.weight": NORM}, architectures=["MistralForCausalLM"]) != known


def test_shards_are_found_by_their_index(model, tmp_path):
    known = model({"model.norm.weight": NORM})
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    index = {"weight_map": {"model.norm.weight": "shard.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"norm.weight": NORM}, tmp_path / "consolidated.safetensors")  # a second copy
    assert model({}) == known


def test_a_model_without_norms_or_with_a_broken_file_has_none(model, tmp_path):
    with pytest.raises(ModelError, match="has no fingerprint"):
        model({LAYER: NORM})
    (tmp_path / "model.safetensors").write_text("no weights")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        model({})
