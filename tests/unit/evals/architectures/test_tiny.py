"""Tiny models from config classes, what transformers says of them, and the results' file."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from evals.architectures.found import Found, Results, Role
from evals.architectures.oracle import Oracle
from evals.architectures.registry import Recipe
from evals.architectures.table import markdown
from evals.architectures.tiny import SMALL, WINDOW, build, small, write_stub
from kv_transfer.messages import KeptPrompt
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model


def made(folder: Path, architecture: str, model_type: str) -> str:
    recipe = Recipe(architecture, model_type)
    write_stub(folder, recipe)
    return build(folder, recipe)


def test_a_model_is_tiny_and_can_be_inspected(tmp_path: Path) -> None:
    info = inspect_model(made(tmp_path, "Qwen3ForCausalLM", "qwen3"), engine="vllm")
    assert (info.architecture, info.vocab_size, info.max_position) == ("Qwen3ForCausalLM", 512, 1024)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) < 4e6


def test_layers_of_two_kinds_alternate_and_names_of_a_family_are_known() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    gemma, gpt2 = small(CONFIG_MAPPING["gemma3_text"], {}), small(CONFIG_MAPPING["gpt2"], {})
    assert gemma.layer_types == ["sliding_attention", "full_attention"] * 2
    assert gemma.sliding_window == WINDOW
    assert (gpt2.n_embd, gpt2.n_layer, gpt2.n_positions) == (128, 4, 1024)


def test_attention_of_the_latent_kind_has_the_sizes_of_its_kernels() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = small(CONFIG_MAPPING["deepseek_v3"], {})
    assert (config.kv_lora_rank, config.qk_rope_head_dim) == (512, 64)
    assert config.num_key_value_heads == SMALL["num_attention_heads"]


def test_every_weight_of_a_model_counts(tmp_path: Path) -> None:
    """The oracle says something else if any weight is what an engine that forgot it would have."""
    oracle = Oracle(made(tmp_path, "Qwen2ForCausalLM", "qwen2"))
    prompt = KeptPrompt.dense(np.arange(20, 60))
    before = oracle.logprobs(prompt, [20, 21])
    for name, weight in oracle._model.named_parameters():
        right = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(1.0 if "norm" in name else 0.0)
        assert (oracle.logprobs(prompt, [20, 21]) - before).abs().max() > 0.01, name
        with torch.no_grad():
            weight.copy_(right)


def test_the_oracle_reads_positions(tmp_path: Path) -> None:
    oracle = Oracle(made(tmp_path, "LlamaForCausalLM", "llama"))
    ids, gaps = np.arange(20, 60, dtype=np.int32), np.arange(0, 80, 2, dtype=np.int32)
    compact, spread = KeptPrompt.dense(ids), KeptPrompt(ids, gaps, 80)
    moved = KeptPrompt(ids, gaps + 64, 144)
    rows = [oracle.logprobs(prompt, [20, 21]) for prompt in (compact, spread, moved)]
    assert (rows[0] - rows[1]).abs().max() > 0.1
    torch.testing.assert_close(rows[1], rows[2], atol=1e-4, rtol=0)


def test_what_transformers_cannot_make_is_said(tmp_path: Path) -> None:
    recipe = Recipe("LlamaForCausalLM", "llama", {"num_attention_heads": 3})
    with pytest.raises(SkimError, match="transformers cannot make a small model"):
        build(tmp_path, recipe)


RIGHT, REFUSED = Role("yes", error=1e-6, control=1.0), Role("no", "it has ALiBi")


def test_results_go_on_where_they_ended(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    Results(file).add(Found("B", "b", "float32", RIGHT, RIGHT))
    again = Results(file)
    again.add(Found("A", "a", "float32", REFUSED, REFUSED))
    content = json.loads(file.read_text())
    assert list(content["architectures"]) == ["A", "B"]
    assert content["architectures"]["B"]["target"] == asdict(RIGHT)
    assert "transformers" in content["machine"]["versions"]


def test_results_of_other_versions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    Results(file).add(Found("A", "a", "float32", RIGHT, RIGHT))
    content = json.loads(file.read_text())
    content["machine"]["versions"]["transformers"] = "1.0"
    file.write_text(json.dumps(content))
    with pytest.raises(SkimError, match="results of other versions"):
        Results(file)
    file.write_text("[]")
    with pytest.raises(SkimError, match="is not a file that `skim models check` wrote"):
        Results(file)


def test_architectures_with_the_same_results_share_a_line() -> None:
    found = [Found(name, "m", "float32", RIGHT, REFUSED) for name in ("A", "B")]
    found.append(Found("C", "m", "float32", REFUSED, REFUSED))
    lines = markdown({"architectures": {one.architecture: asdict(one) for one in found}}).splitlines()
    assert lines[2:] == ["| A, B | no: it has ALiBi | yes |", "| C | no: it has ALiBi | no: it has ALiBi |"]
