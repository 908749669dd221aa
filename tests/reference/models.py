"""Tiny random checkpoints on disk, one per attention flavour, for comparing engines with the transformers oracle.

The random weights make every part count: attention is peaked enough to rank tokens, and biases and norm weights, which
transformers initialises to 0 and 1, are random too. An engine that omits one of them fails the comparison.
"""

import shutil
from pathlib import Path
from typing import Literal

import torch
import transformers

Family = Literal["llama", "qwen2", "qwen3", "mistral"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "mistral")

TOKENIZER = Path(__file__).parents[2] / "demo_models" / "speculator"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),  # QKV bias
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),  # QK norm
    "mistral": ("MistralConfig", "MistralForCausalLM"),
}


def build_model(
    path: str | Path,
    family: Family,
    *,
    head_dim: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    layers: int = 2,
    hidden: int | None = None,
    seed: int = 0,
    vocab_size: int = 1024,
    max_position: int = 8192,
    eos_token_id: int = 5,
    sliding_window: int | None = None,
) -> str:
    """Write a float32 checkpoint with the demo pair's tokenizer into folder `path` and return `path`.

    hidden: heads * head_dim by default, because not every engine reads Qwen2's head_dim. eos_token_id: the weights do
    not depend on it, so a test can name a token that it has seen the model decode. sliding_window: Mistral only, for
    the folder that a speculator must refuse.
    """
    hidden = hidden or heads * head_dim
    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[family])
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        # Scores q·k/√D of unit-variance inputs then have a deviation of about 2: neither flat nor one-hot.
        initializer_range=(2 / hidden) ** 0.5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=eos_token_id,
        pad_token_id=0,
        dtype="float32",
        **({"sliding_window": sliding_window} if family == "mistral" else {}),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(".bias"):
                    weight.normal_(0, 0.5)
                elif "q_norm" in name or "k_norm" in name:
                    weight.uniform_(1, 2)  # after a norm, only these weights set how peaked attention is
                elif "norm" in name:
                    weight.uniform_(0.6, 1.4)
    model.save_pretrained(path)
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / name, path)
    return str(path)


def random_prompt(length: int, *, seed: int = 0, vocab_size: int = 1024) -> list[int]:
    """Random token ids without special tokens (under 16), so that no engine stops at one or drops one.

    The tokenizer knows 724 of the default 1024 ids: pass vocab_size if ids are checked against `ModelInfo.vocab_size`.
    """
    return torch.randint(16, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
