"""Parameter counts from a config alone, compared with weights on disk."""

from pathlib import Path

import pytest
import transformers
from huggingface_hub import get_local_safetensors_metadata

from skim_common.models.size import model_size
from tests.reference.models import FAMILIES, build_model
from tests.unit.conftest import MODELS

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 2048,
}


def on_disk(folder):
    return sum(get_local_safetensors_metadata(folder).parameter_count.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_on_disk_are_as_many(tmp_path, family):
    folder = build_model(tmp_path, family, layers=3, hidden=256, vocab_size=1024)
    size = model_size(folder)
    assert size.parameters == on_disk(folder)
    assert size.per_token == size.parameters - 2 * 1024 * 256  # without the embedding table and the output head
    assert size.positions == 8192


def test_a_shared_table_is_counted_once():
    for model in ("speculator", "target"):
        assert model_size(MODELS / model).parameters == on_disk(MODELS / model)


def test_only_the_experts_that_compute_a_token_are_counted(tmp_path):
    """Negative control: all experts active."""
    sizes = {}
    for active in (2, 8):
        folder = tmp_path / str(active)
        transformers.MixtralConfig(**TINY, num_local_experts=8, num_experts_per_tok=active).save_pretrained(folder)
        sizes[active] = model_size(folder)
    assert sizes[2].parameters == sizes[8].parameters
    one_expert = 3 * TINY["hidden_size"] * TINY["intermediate_size"]
    assert sizes[8].per_token - sizes[2].per_token == TINY["num_hidden_layers"] * 6 * one_expert
    assert sizes[8].per_token == sizes[8].parameters - 2 * TINY["vocab_size"] * TINY["hidden_size"]


def test_a_model_that_transformers_cannot_build(tmp_path):
    transformers.LlamaConfig(**{**TINY, "num_attention_heads": 4, "head_dim": 16}).save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"silu"', '"no such function"'))
    size = model_size(tmp_path)
    assert (size.positions, size.parameters, size.per_token) == (2048, None, None)


def test_quantised_weights_count_as_what_they_stand_for(tmp_path):
    plain, quantised = tmp_path / "plain", tmp_path / "quantised"
    transformers.LlamaConfig(**TINY).save_pretrained(plain)
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    transformers.LlamaConfig(**TINY, quantization_config=awq).save_pretrained(quantised)
    assert "awq" in Path(quantised, "config.json").read_text()
    assert model_size(quantised) == model_size(plain)
