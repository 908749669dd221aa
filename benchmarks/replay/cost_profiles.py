"""What big models cost on GPUs, computed from their sizes: for mock engines that take as long as a real engine would.

A prefill takes 2 operations per parameter and token at half of a GPU's peak. A decoding step reads all weights once
from memory. The cost of attention is left out, which favours a dense server with long prompts. The engines of a pool
divide all work perfectly between its GPUs.
"""

from dataclasses import dataclass

from cluster.plan.gpus import GPUS

PEAK_FLOPS = GPUS["h100"].flops
BANDWIDTH = GPUS["h100"].bandwidth
GPU_BYTES = 0.9 * GPUS["h100"].memory
PREFILL_EFFICIENCY = 0.5


@dataclass(frozen=True)
class Model:
    """A Llama model in bfloat16. parameters: their number. layers, kv_heads, head_size: of the KV cache."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int = 128

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    def ms_per_token(self, gpus: int) -> float:
        """Milliseconds of a prefill per token."""
        return 1e3 * 2 * self.parameters / (gpus * PEAK_FLOPS * PREFILL_EFFICIENCY)

    def ms_per_step(self, gpus: int) -> float:
        """Milliseconds of a decoding step."""
        return 1e3 * 2 * self.parameters / (gpus * BANDWIDTH)


LLAMA_70B = Model("Llama 3.1 70B", 70.6e9, layers=80, kv_heads=8)
LLAMA_8B = Model("Llama 3.1 8B", 8.0e9, layers=32, kv_heads=8)
LLAMA_1B = Model("Llama 3.2 1B", 1.24e9, layers=16, kv_heads=8, head_size=64)


@dataclass(frozen=True)
class Profile:
    """A target and a speculator on `gpus` GPUs, of which `speculator_gpus` run the speculator. A dense server of the
    target has all of them.
    """

    target: Model
    speculator: Model
    gpus: int = 8
    speculator_gpus: int = 4

    @property
    def kv_bytes(self) -> float:
        """The memory for KV that Skim's two pools have together."""
        return self.gpus * GPU_BYTES - 2 * (self.target.parameters + self.speculator.parameters)

    @property
    def ratio(self) -> float:
        """KV bytes per token of the speculator, divided by those of the target."""
        return self.speculator.kv_bytes / self.target.kv_bytes


PROFILES = {"70b+8b": Profile(LLAMA_70B, LLAMA_8B), "70b+1b": Profile(LLAMA_70B, LLAMA_1B, speculator_gpus=1)}


def tokens_held(stock_tokens: float, keep_rate: float, ratio: float) -> tuple[int, int]:
    """The tokens that the target and the speculator of Skim hold in the KV memory in which a stock server holds
    `stock_tokens`, divided so that both hold the same prompts: the target their kept tokens, the speculator all.

    ratio: KV bytes per token of the speculator, divided by those of the target.
    """
    prompts = stock_tokens / (keep_rate + ratio)
    return int(keep_rate * prompts), int(prompts)
