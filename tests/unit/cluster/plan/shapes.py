"""Models of known shapes, made from their configs alone."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu.presets import MODELS
from cluster.plan.engine import Model
from skim_common.models.costs import read_cost
from skim_common.models.size import ModelSize

LLAMA_2_7B = SimpleNamespace(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32)
LLAMA_3_70B = SimpleNamespace(
    num_hidden_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_key_value_heads=8,
    intermediate_size=28672,
    vocab_size=128256,
)
DEEPSEEK_V2 = SimpleNamespace(
    num_hidden_layers=60, hidden_size=5120, num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64
)


@cache
def model(name: str) -> Model:
    """A model of `benchmarks.gpu.presets`, or llama-70b. Its size is that of its matrix products and embeddings."""
    text: Any = LLAMA_3_70B if name == "llama-70b" else SimpleNamespace(**MODELS[name])
    computing, head = round(read_cost(text).linear / 2), text.vocab_size * text.hidden_size
    return Model.of(name, text, ModelSize(131072, computing + 2 * head, computing))
