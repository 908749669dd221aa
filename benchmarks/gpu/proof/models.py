"""Checkpoints with random weights that are comparable with an oracle, and prompts for them.

Attention is peaked enough to rank tokens, and the norm weights are random too, so that an engine that leaves out or
misplaces a part gives other tokens.
"""

from pathlib import Path

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


def make_checkpoint(
    folder: Path, *, layers: int, head_size: int, vocabulary: int = VOCABULARY, max_position: int = 8192
) -> str:
    """Write a Llama with four query heads and two KV heads, in bfloat16, into `folder`. Returns its path."""
    hidden = 4 * head_size
    config = {
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
    }
    path = make_folder(config, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(layers)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.6, 1.4)
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
