"""Model folders as users have them: correct, wrong, incomplete."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PretrainedConfig

from skim_common.errors import ModelError
from skim_common.models.info import (
    _override,
    check_pair,
    inspect_model,
    position_count,
    text_config,
)
from speculator_service.model import check_speculator, window_of_all_layers

DEMO = Path(__file__).parents[4] / "demo_models"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
BERT = {"model_type": "bert", "max_position_embeddings": 512}


@pytest.fixture
def folder(tmp_path):
    """A model folder without weights; the test may break it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / "target" / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def write_config(folder, **changes):
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def refusal(call, *args, **kwargs) -> str:
    with pytest.raises(ModelError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_demo_pair_fits():
    target = inspect_model(str(DEMO / "target"), engine="vllm")
    speculator = inspect_model(str(DEMO / "speculator"), engine="mock", max_model_len=2048)
    check_speculator(str(DEMO / "speculator"), 2048)
    check_pair(speculator, target)
    assert (target.architecture, target.max_position, target.max_model_len) == ("LlamaForCausalLM", 32768, 32768)
    assert (speculator.engine, speculator.max_model_len, speculator.max_position) == ("mock", 2048, 32768)
    assert len(target.fingerprint) == 64


def test_heads_of_gemma_4_differ_from_layer_to_layer(folder):
    """transformers raises an error of its own for a size that one layer does not share with another."""
    write_config(folder, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], global_head_dim=64)
    info = inspect_model(str(folder), engine="vllm", max_model_len=2048)
    assert (info.architecture, info.max_position) == ("Gemma4ForCausalLM", 4096)
    assert info.read_cost.pair > 0


def test_padding_of_the_embeddings_is_no_difference(folder):
    write_config(folder, vocab_size=2048)
    padded = inspect_model(str(folder), engine="vllm")
    check_pair(padded, inspect_model(str(DEMO / "target"), engine="vllm"))
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(tokens) <= padded.vocab_size < 2048


def test_fewer_embeddings_than_tokens(folder):
    write_config(folder, vocab_size=100)
    small = inspect_model(str(folder), engine="vllm")
    target = inspect_model(str(DEMO / "target"), engine="vllm")
    message = refusal(check_pair, small, target)
    assert f"100 and {target.vocab_size} tokens" in message


def test_another_tokenizer_is_refused_with_both_fingerprints(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {"id": 900, "content": "<new>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
    )  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    other = inspect_model(str(folder), engine="vllm")
    target = inspect_model(str(DEMO / "target"), engine="vllm")
    message = refusal(check_pair, other, target)
    for part in (str(folder), str(DEMO / "target"), other.fingerprint[:12], target.fingerprint[:12]):
        assert part in message


def test_swapped_ids_change_the_fingerprint(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number in (300, 301)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ours = inspect_model(str(folder), engine="vllm")
    target = inspect_model(str(DEMO / "target"), engine="vllm")
    assert ours.vocab_size == target.vocab_size
    assert ours.fingerprint != target.fingerprint


def test_equal_fingerprints_alone_do_not_make_a_pair():
    target = inspect_model(str(DEMO / "target"), engine="vllm")
    assert "different vocabularies" in refusal(check_pair, replace(target, vocab_size=5), target)


def test_the_text_part_of_a_larger_config_counts(folder):
    text = {"model_type": "gemma3_text", "max_position_embeddings": 777, "vocab_size": 2048}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    assert inspect_model(str(folder), engine="vllm").max_position == 777


def test_a_model_that_reads_images_counts_by_its_text(folder):
    text = {"model_type": "qwen3_vl_text", "max_position_embeddings": 777, "vocab_size": 2048}
    config = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    info = inspect_model(str(folder), engine="vllm")
    assert (info.architecture, info.max_position) == ("Qwen3VLForConditionalGeneration", 777)


@pytest.mark.parametrize("length", [0, -1, 4097, "auto"])
def test_max_model_len_outside_the_positions(folder, length):
    message = refusal(inspect_model, str(folder), engine="vllm", max_model_len=length)
    assert "4096" in message
    assert str(length) in message


def test_missing_folder(tmp_path):
    assert refusal(inspect_model, str(tmp_path / "no"), engine="vllm").endswith("no does not exist")


def test_a_file_instead_of_a_folder(folder):
    assert "Not a directory" in refusal(inspect_model, str(folder / "config.json"), engine="vllm")


def test_unreadable(folder):
    # A folder instead of the file: not even root can read it.
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    message = refusal(inspect_model, str(folder), engine="vllm")
    assert "cannot be read" in message
    assert str(folder) in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "model_type"),
        ('{"model_type": "no-such-kind"}', "no-such-kind"),
        ('{"model_type": "llama", "num_attention_heads": "x"}', "num_attention_heads"),
        (
            '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}',
            "no model type mine, and Skim runs no code of a repository",
        ),
        ("\udcff", "not valid JSON"),
    ],
)
def test_config_files_that_are_none(folder, text, reason):
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    message = refusal(inspect_model, str(folder), engine="vllm")
    assert reason in message
    assert str(folder) in message


def test_missing_config(folder):
    (folder / "config.json").unlink()
    assert "has no config.json" in refusal(inspect_model, str(folder), engine="vllm")


@pytest.mark.parametrize(
    "config",
    [
        {**BERT, "architectures": ["BertForMaskedLM"]},
        {"model_type": "clip"},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
    ],
)
def test_no_causal_language_model(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    assert "not a causal language model" in refusal(inspect_model, str(folder), engine="vllm")


@pytest.mark.parametrize("architecture", ["DeepseekV4ForCausalLM", "Qwen4ExpForCausalLM", "InklingMTP"])
def test_caches_that_are_addressed_by_position(folder, architecture):
    """Both services refuse them, before anything else is read."""
    write_config(folder, architectures=[architecture])
    assert f"is not supported: {architecture} finds entries of its caches by position" in refusal(
        inspect_model, str(folder), engine="vllm"
    )


@pytest.mark.parametrize("architectures", [None, [], ["LlamaForCausalLM"]])
def test_architecture_from_the_kind(folder, architectures):
    write_config(folder, architectures=architectures)
    assert inspect_model(str(folder), engine="vllm").architecture == "LlamaForCausalLM"


def test_missing_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refusal(inspect_model, str(folder), engine="vllm")


def test_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer cannot be loaded" in refusal(inspect_model, str(folder), engine="vllm")


MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 128}
QWEN2 = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MISTRAL, "sliding-window attention in every layer; set max_model_len to at most 128"),
        (QWEN2, "sliding-window attention in every layer; set max_model_len to at most 8"),
        ({"model_type": "deepseek_v32", "index_topk": 64}, "sparse attention (index_topk 64)"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 3}, "only layers of type linear_attention"),
    ],
)
def test_speculators_that_cannot_be_scored(folder, config, reason):
    (folder / "config.json").write_text(json.dumps(config))
    message = refusal(check_speculator, str(folder), 10**6)
    assert reason in message
    assert "not supported yet as a speculator" in message
    assert str(folder) in message


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 128},
        {"model_type": "qwen3"},
        {"model_type": "llama"},
    ],
)
def test_speculators_with_full_attention(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    check_speculator(str(folder), 10**6)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma2"},
        {"model_type": "gemma3_text"},
        {"model_type": "gpt_oss"},
        {"model_type": "qwen3_next", "num_hidden_layers": 4},
        {"model_type": "deepseek_v2", "kv_lora_rank": 16},
    ],
)
def test_speculators_with_other_layers_too(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    check_speculator(str(folder), 10**6)


@pytest.mark.parametrize("config", [MISTRAL, QWEN2])
def test_within_its_window_a_speculator_has_full_attention(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    window = config["sliding_window"]
    assert window_of_all_layers(text_config(str(folder))) == window
    check_speculator(str(folder), window)
    assert "in every layer" in refusal(check_speculator, str(folder), window + 1)


def test_a_window_of_some_layers_does_not_limit_the_length(folder):
    for model_type in ("gemma2", "gemma3_text", "gpt_oss", "llama"):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert window_of_all_layers(text_config(str(folder))) is None


def test_overrides_change_parts_of_a_config_as_in_vllm():
    text = PretrainedConfig(max_position_embeddings=64, rope_parameters={"rope_type": "linear", "factor": 2.0})
    config = PretrainedConfig(text_config=text, rope_parameters={"factor": 1.0})
    overrides = {"text_config": {"max_position_embeddings": 128, "rope_parameters": {"factor": 4.0}}}
    _override(config, overrides | {"rope_parameters": {"rope_theta": 5.0}, "eos_token_id": 7})
    assert config.text_config is text
    assert position_count(text) == 512
    assert (config.rope_parameters, config.eos_token_id) == ({"rope_theta": 5.0}, 7)
