"""What a run needs of one device's memory, asked before anything is made: weights, KV cache, and room to work in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kv_transfer.errors import SkimError

GIB = 2**30
BYTES = 2
"""Of a bfloat16."""
WORKING_GIB = 4.0
"""Per model: CUDA's context, graphs, and a step's activations and logits. An allowance; no GPU has been asked."""
USABLE = 0.94
"""Share of the device's memory that is planned with."""


@dataclass(frozen=True)
class Need:
    """One model's need. weights, kv: bytes. tokens: how many the KV cache holds."""

    name: str
    weights: int
    kv: int
    tokens: int
    working: float = WORKING_GIB * GIB

    @property
    def total(self) -> float:
        return self.weights + self.kv + self.working

    def __str__(self) -> str:
        kv = f"{self.kv / GIB:.1f} of KV for {self.tokens} tokens"
        return f"{self.name} ({self.weights / GIB:.1f} GiB of weights, {kv})"


def weight_bytes(config: dict[str, Any]) -> int:
    """Bytes of the model's parameters in bfloat16; tied embeddings count once. Made without memory (device meta)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    return BYTES * sum(parameter.numel() for parameter in model.parameters())


def kv_bytes(config: dict[str, Any], tokens: int) -> int:
    """Keys and values of `tokens` in bfloat16, all layers."""
    return 2 * BYTES * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * tokens


def need(name: str, config: dict[str, Any], tokens: int, *, working_gib: float = WORKING_GIB) -> Need:
    """What the model `name` needs to hold `tokens`."""
    return Need(name, weight_bytes(config), kv_bytes(config, tokens), tokens, working_gib * GIB)


def shares(needs: Sequence[Need], total: int, free: int) -> list[float]:
    """Each model's share of the device (`gpu_memory_utilization`); what is left over is divided alike.

    total, free: bytes of the device. Raises SkimError if it does not fit.
    """
    there = min(free, USABLE * total)
    asked = sum(need.total for need in needs)
    if asked > there:
        raise SkimError(
            f"{' and '.join(map(str, needs))}, with {sum(n.working for n in needs) / GIB:.0f} GiB to work in, need"
            f" {asked / GIB:.1f} GiB and {there / GIB:.1f} can be had: choose shorter --lengths or a smaller --preset"
        )
    spare = (there - asked) / len(needs)
    return [(need.total + spare) / total for need in needs]


def device_memory(device: str) -> tuple[int, int]:
    """Total and free bytes of the device, of the machine for cpu."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total, free
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available
