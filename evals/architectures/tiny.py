"""Tiny random models of any architecture that transformers has, made from the architecture's config class.

The random weights make every part count: attention is peaked enough to rank tokens, and biases and norm weights, which
transformers initialises to 0 and 1, are random too. An engine that omits one of them gives other answers.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evals.architectures.registry import Recipe
from skim_common.errors import SkimError

VOCABULARY = 512
SPECIAL = 16
"""Token ids below are special tokens, which prompts do not have."""
WINDOW = 32

SMALL: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 128,
    "hidden_size_per_layer_input": 32,
    "intermediate_size": 256,
    "ffn_hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    # Scores q·k/√D of unit-variance inputs then have a deviation of about 2: neither flat nor one-hot.
    "initializer_range": (2 / 128) ** 0.5,
    "bos_token_id": 1,
    "eos_token_id": 5,
    "pad_token_id": 0,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "depth": 1,
    "num_heads": 4,
    "out_hidden_size": 128,
    # The only sizes of MLA's latent vector and of its rotary part for which vLLM's CPU build has kernels.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "q_lora_rank": 96,
    "dtype": "float32",
}
"""For every config that knows the name. The rest keeps the architecture's defaults."""


def build(folder: Path, recipe: Recipe) -> str:
    """Write a checkpoint of the recipe's model into `folder`, which has a tokenizer (`write_stub`); returns it.

    Raises SkimError if transformers has no such model, or cannot make it so small.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    try:
        config = small(CONFIG_MAPPING[recipe.model_type], recipe.config)
        kind = AutoModelForImageTextToText if recipe.has_images else AutoModelForCausalLM
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = kind.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                _randomize(model)
    except Exception as error:  # configs and models of transformers raise every kind
        raise SkimError(f"transformers cannot make a small model: {type(error).__name__}: {error}") from error
    model.save_pretrained(folder)
    _add_keys_and_values(folder, config.get_text_config())
    if recipe.has_images:  # vLLM wants a processor, although no test sends an image
        processor = IMAGE_PROCESSOR_MAPPING_NAMES.get(recipe.model_type, {}).get("torchvision")
        (folder / "preprocessor_config.json").write_text(
            json.dumps({"image_processor_type": processor}), encoding="utf-8"
        )
    _set_architecture(folder, recipe.architecture)
    return str(folder)


def small(config_class: Any, own: Mapping[str, Any]) -> Any:
    """The class's config with the sizes of SMALL, and with `own`. Layers of two kinds alternate."""
    default = config_class()
    known = {name: value for name, value in SMALL.items() if _has(default, name)}
    if "kv_lora_rank" in known and default.kv_lora_rank:  # MLA: `head_dim` is that of the rotary part
        known |= {"head_dim": SMALL["qk_rope_head_dim"], "num_key_value_heads": SMALL["num_attention_heads"]}
    elif "q_lora_rank" in known:
        del known["q_lora_rank"]
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if len(kinds) == 2 and "full_attention" in kinds and _has(default, "layer_types"):
        known["layer_types"] = [kind for kind in kinds if kind != "full_attention"] * 4
        known["layer_types"][1::2] = ["full_attention"] * 2
        if "sliding_window" in default.to_dict():
            known["sliding_window"] = WINDOW
    parts = {
        name: small(type(getattr(default, name)), own.get(name, {})).to_dict()
        for name in config_class.sub_configs
        if getattr(default, name, None) is not None
    }
    return config_class(**{**known, **own, **parts})


def _has(config: Any, name: str) -> bool:
    return name in config.to_dict() or name in config.attribute_map or name == "dtype"


def write_stub(folder: Path, recipe: Recipe) -> None:
    """A tokenizer of VOCABULARY words, t0 to t511, and a config.json that names the architecture."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "t0", "pad_token": "t0", "bos_token": "t1", "eos_token": "t5"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    config = {"model_type": recipe.model_type, "architectures": [recipe.architecture]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _randomize(model: Any) -> None:
    embeddings = model.get_input_embeddings().weight
    tied = getattr(model.get_output_embeddings(), "weight", None) is embeddings
    for name, weight in model.named_parameters():
        if weight is embeddings:
            # Of variance 1, so that it is not lost in a residual stream without a first norm. If it is the output head
            # too, larger ones would make the last token the most probable next one.
            weight.normal_(0, 0.03 if tied else 1.0)
        elif name.endswith(".bias"):
            weight.normal_(0, 0.5)
        elif name.endswith("sinks"):
            weight.uniform_(1, 3)
        elif weight.ndim == 1 and "norm" in name:
            weight.add_(torch.empty_like(weight).uniform_(-0.4, 0.4))  # around 1, or around 0 if 1 is added


def _add_keys_and_values(folder: Path, text: Any) -> None:
    """Of layers that use those of another layer. transformers leaves them out; checkpoints have them."""
    if not (shared := getattr(text, "num_kv_shared_layers", 0)):
        return
    from safetensors.torch import load_file, save_file

    [file] = folder.glob("*.safetensors")
    weights = load_file(file)
    of_first = {name: weight for name, weight in weights.items() if re.search(r"\.layers\.0\..*\.[kv]_", name)}
    for name, weight in of_first.items():
        for layer in range(text.num_hidden_layers - shared, text.num_hidden_layers):
            weights.setdefault(name.replace(".layers.0.", f".layers.{layer}."), weight.clone())
    save_file(weights, file, {"format": "pt"})


def _set_architecture(folder: Path, architecture: str) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["architectures"] = [architecture]
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")
