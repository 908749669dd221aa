"""The memory that a run needs on one device: weights, KV cache and working memory. Computed before a model is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from cluster.plan import GIB, USABLE, WORKING_GIB
from skim_common.errors import SkimError
from skim_common.models.costs import cache_cost

BYTES = 2
"""Size of a bfloat16."""


@dataclass(frozen=True)
class Need:
    """The memory that one model needs. weights, kv, working: bytes. tokens: tokens that the KV cache holds."""

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
    """Bytes of the model's parameters in bfloat16. Tied embeddings count once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), trust_remote_code=False)
    except Exception:  # transformers raises many kinds, from ImportError to KeyError
        raise SkimError(f"transformers cannot build a model of type {config['model_type']}") from None
    return BYTES * sum(weight.numel() for weight in model.parameters())


def kv_bytes(config: dict[str, Any], tokens: int) -> int:
    """Bytes of the keys and values of `tokens` tokens in all layers, in bfloat16."""
    return round(BYTES * cache_cost(SimpleNamespace(**config)).numbers(tokens))


def need(name: str, config: dict[str, Any], tokens: int, *, working_gib: float = WORKING_GIB) -> Need:
    """The memory that the model needs to hold `tokens` tokens. name: how error messages call the model."""
    return Need(name, weight_bytes(config), kv_bytes(config, tokens), tokens, working_gib * GIB)


def shares(needs: Sequence[Need], total: int, free: int) -> list[float]:
    """Each model's share of the device's memory (`gpu_memory_utilization`). Spare memory is divided equally.

    total, free: bytes of the device. Raises SkimError if the models do not fit.
    """
    there = min(free, USABLE * total)
    asked = sum(need.total for need in needs)
    if asked > there:
        raise SkimError(
            f"{' and '.join(map(str, needs))}, with {sum(n.working for n in needs) / GIB:.0f} GiB of working memory,"
            f" need {asked / GIB:.1f} GiB and {there / GIB:.1f} GiB are free: choose shorter --lengths or a smaller"
            " --preset"
        )
    spare = (there - asked) / len(needs)
    return [(need.total + spare) / total for need in needs]


def device_memory(device: str) -> tuple[int, int]:
    """Total and free bytes of the GPU, or of the machine's memory for cpu."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total, free
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available
