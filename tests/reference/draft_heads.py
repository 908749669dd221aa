"""Random weights for vLLM's methods with draft heads. Their drafts are random, and verification must reject them."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.reference.models import TOKENIZER, TOKENIZER_FILES


def build_eagle(folder: Path, target: str, method: str) -> str:
    """An EAGLE or EAGLE-3 head of one Llama layer (vllm.model_executor.models.llama_eagle, llama_eagle3)."""
    config = _config(target)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    third = method == "eagle3"
    layer, width = ("midlayer", 2 * hidden) if third else ("layers.0", hidden)
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        f"{layer}.self_attn.q_proj.weight": (heads * size, width),
        f"{layer}.self_attn.k_proj.weight": (kv_heads * size, width),
        f"{layer}.self_attn.v_proj.weight": (kv_heads * size, width),
        f"{layer}.self_attn.o_proj.weight": (hidden, heads * size),
        f"{layer}.mlp.gate_proj.weight": (inner, hidden),
        f"{layer}.mlp.up_proj.weight": (inner, hidden),
        f"{layer}.mlp.down_proj.weight": (hidden, inner),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
    }
    config["num_hidden_layers"] = 1
    if third:
        # vLLM's default for these layers needs a target with more layers.
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
        config["draft_vocab_size"] = config["vocab_size"]
        norms = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight")
        shapes |= dict.fromkeys(norms, (hidden,))
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
        config["architectures"] = ["LlamaForCausalLMEagle3"]
    return _write(folder, config, shapes)


def build_dflash(folder: Path, target: str, method: str = "dflash") -> str:
    """One layer of a DFlash head, or of a DSpark one (vllm.model_executor.models.qwen3_dflash, qwen3_dspark)."""
    config = _config(target)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, vocabulary = config["num_attention_heads"], config["num_key_value_heads"], config["vocab_size"]
    layer = "layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 2 * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        f"{layer}.self_attn.q_proj.weight": (heads * size, hidden),
        f"{layer}.self_attn.k_proj.weight": (kv_heads * size, hidden),
        f"{layer}.self_attn.v_proj.weight": (kv_heads * size, hidden),
        f"{layer}.self_attn.o_proj.weight": (hidden, heads * size),
        f"{layer}.self_attn.q_norm.weight": (size,),
        f"{layer}.self_attn.k_norm.weight": (size,),
        f"{layer}.mlp.gate_proj.weight": (inner, hidden),
        f"{layer}.mlp.up_proj.weight": (inner, hidden),
        f"{layer}.mlp.down_proj.weight": (hidden, inner),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
    }
    # vLLM's attention on CPU is causal.
    head = {"target_layer_ids": [0, 1], "mask_token_id": 4, "causal": True}
    config |= {"model_type": "qwen3", "num_hidden_layers": 1, "dflash_config": head}
    config |= {"architectures": ["DFlashDraftModel"], "attention_bias": False, "layer_types": ["full_attention"]}
    if method == "dspark":
        config |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": 16, "dspark_target_layer_ids": [0, 1]}
        shapes |= {"markov_head.markov_w1.weight": (vocabulary, 16), "markov_head.markov_w2.weight": (vocabulary, 16)}
    return _write(folder, config, shapes)


def build_medusa(folder: Path, target: str, heads: int) -> str:
    """Medusa heads (vllm.model_executor.models.medusa), one per draft."""
    config = _config(target)
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        shapes[f"blocks.{head}.layers.0.weight"] = (hidden, hidden)
        shapes[f"lm_heads.{head}.weight"] = (vocabulary, hidden)
    medusa = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "num_heads": heads,
        "num_hidden_layers": 1,
    }
    return _write(folder, medusa, shapes)


def _config(target: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(target) / "config.json").read_text())
    return config


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.1 * torch.randn(shape, generator=generator) if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / name, folder)
    return str(folder)
