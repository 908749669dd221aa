"""Model sizes by name, and model folders of these sizes: config.json for transformers, a tokenizer, no weights.

The cost of a step does not depend on the values of the weights. Two things differ from the models whose sizes are used.
Positions reach beyond 128k tokens, so that an answer fits after a prompt of that length. And prompts use only the few
hundred token ids of the demo pair's tokenizer; embeddings and logits still have their full size.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.models import TOKENIZER
from skim_common.errors import SkimError

POSITIONS = 160 * 1024
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, wide: int, vocab: int, tied: bool
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 5,
        "pad_token_id": 0,
    }


def _qwen2(layers: int, hidden: int, heads: int, kv_heads: int, wide: int, vocab: int) -> dict[str, Any]:
    """As `_llama`, with biases on queries, keys and values. The head size is hidden / heads."""
    shape = _llama(layers, hidden, heads, kv_heads, hidden // heads, wide, vocab, False)
    return {**shape, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0}


MODELS: dict[str, dict[str, Any]] = {
    "llama-1b": _llama(16, 2048, 32, 8, 64, 8192, 128256, True),  # Llama-3.2-1B
    "llama-8b": _llama(32, 4096, 32, 8, 128, 14336, 128256, False),  # Llama-3.1-8B
    "llama-70b": _llama(80, 8192, 64, 8, 128, 28672, 128256, False),  # Llama-3.1-70B
    "qwen-7b": _qwen2(28, 3584, 28, 4, 18944, 152064),  # Qwen2.5-7B
    "qwen-32b": _qwen2(64, 5120, 40, 8, 27648, 152064),  # Qwen2.5-32B
    "qwen3-0.6b": _llama(28, 1024, 16, 8, 128, 3072, 151936, True),  # Qwen3-0.6B, without its norms of queries and keys
    "toy": _llama(4, 256, 4, 2, 64, 512, 1024, False),
    "toy-small": _llama(2, 128, 4, 2, 32, 256, 1024, True),
}


@dataclass(frozen=True)
class Preset:
    """Names of target and speculator in MODELS, and the default prompt lengths."""

    target: str
    speculator: str
    lengths: tuple[int, ...] = (16384, 32768, 65536, 131072)


PRESETS = {
    "8b": Preset("llama-8b", "llama-1b"),
    "32b": Preset("qwen-32b", "qwen3-0.6b"),
    "toy": Preset("toy", "toy-small", (256, 512)),
}


def preset(name: str) -> Preset:
    """The preset of this name. Raises SkimError if there is none."""
    if name not in PRESETS:
        raise SkimError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def configs(chosen: Preset) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json of target and speculator. Both have the target's vocabulary size, because a pair shares token ids."""
    target, speculator = MODELS[chosen.target], MODELS[chosen.speculator]
    return target, {**speculator, "vocab_size": target["vocab_size"]}


def make_folder(config: dict[str, Any], folder: Path, tokenizer: Path = TOKENIZER) -> str:
    """Write config.json and the tokenizer into `folder`, which is created if needed. Returns its path for an engine.

    tokenizer: the folder of the tokenizer, by default the demo pair's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in _FILES:
        if (tokenizer / name).exists():  # an older model has its chat template in tokenizer_config.json
            shutil.copy(tokenizer / name, folder)
    return str(folder)
