"""Fields of vLLM's sampling parameters (vllm.sampling_params): when an output is sent, and what a seed decides."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

CUMULATIVE, DELTA, FINAL_ONLY = 0, 1, 2
"""Values of vLLM's RequestOutputKind: each output holds all so far, only what is new, or comes once at the end."""

READ_ONLY: Mapping[str, Any] = MappingProxyType({"max_tokens": 1, "temperature": 0.0, "detokenize": False})
"""Of a request whose prompt is to be read. An engine makes at least one token."""


def is_seeded(sampling: Mapping[str, Any]) -> bool:
    """Whether a seed decides the answer to a request with these fields of vllm.SamplingParams. A greedy answer has no
    need of it."""
    return sampling.get("seed") is not None and (sampling.get("temperature", 1.0) or 0.0) > 0
