"""Checkpoints with random weights that are comparable with an oracle, and prompts for them.

Attention is peaked enough to rank tokens, and the norm weights are random too, so that an engine that leaves out or
misplaces a part gives other tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu.presets import make_folder
from kv_transfer.messages import KeptPrompt

VOCABULARY = 724
"""Ids that the demo pair's tokenizer knows."""
_FIRST_ID = 16
"""The ids below are special tokens, at which an engine might stop."""


HYBRID: Mapping[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    # All of a head rotates, so that wrong positions show although half of the layers have none.
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    # All experts: bfloat16 would choose others than float32.
    "num_experts": 4,
    "num_experts_per_tok": 4,
}
"""Fields of a config of four layers: linear attention in every second one, and experts."""


def make_checkpoint(
    folder: Path,
    *,
    layers: int,
    head_size: int,
    vocabulary: int = VOCABULARY,
    max_position: int = 8192,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Write a model with four query heads and two KV heads, in bfloat16, into `folder`. Returns its path.

    fields: of its config, in addition to those of a Llama.
    """
    hidden = 4 * head_size
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_size,
        "vocab_size": vocabulary,
        "max_position_embeddings": max_position,
        # Scores q·k/√D then have a deviation of about 2: neither flat nor one-hot.
        "initializer_range": (2 / hidden) ** 0.5,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 5,
        "pad_token_id": 0,
        **fields,
    }
    path = make_folder(config, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(layers)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                # The norms of Qwen3-Next add 1 to their weight, except those of linear attention.
                start = 1 if fields and "linear_attn" not in name else 0
                if "q_norm" in name or "k_norm" in name:
                    weight.uniform_(1 - start, 1.8 - start)  # only these weights set how peaked attention is
                elif "norm" in name:
                    weight.uniform_(0.6 - start, 1.4 - start)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return path


def random_ids(length: int, seed: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Random token ids, int32 [length], without special tokens."""
    return np.random.default_rng([length, seed]).integers(_FIRST_ID, vocabulary, length, dtype=np.int32)


def kept_prompt(context: int, kept: int, seed: int) -> KeptPrompt:
    """`kept` random tokens of a random prompt of `context` tokens, at their original positions."""
    ids = random_ids(context, seed)
    positions = np.sort(np.random.default_rng(seed).choice(context, kept, replace=False)).astype(np.int32)
    return KeptPrompt(ids[positions], positions, context)
