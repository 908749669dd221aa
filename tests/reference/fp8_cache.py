"""transformers' KV cache as an FP8 cache: keys and values are divided by one scale and rounded to FP8.

Shares no code with speculator_service. As in vLLM's CPU attention, numbers are rounded towards zero, and each token
reads the rounded values of all tokens, its own included.
"""

from typing import Any

import pytest
import torch
from transformers import DynamicCache


def rounded(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The largest FP8 numbers of type `dtype` that are not larger in magnitude, float32."""
    nearest = numbers.to(dtype)
    too_large = nearest.float().abs() > numbers.abs()
    # One less in the bits is the next smaller magnitude.
    return (nearest.view(torch.uint8) - too_large.to(torch.uint8)).view(dtype).float()


def needs_fp8_cache() -> None:
    """Skip the test where vLLM's CPU attention has no FP8 KV cache, in its own words: it needs AVX-512 or AMX."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        _get_attn_isa(torch.float32, 32, 64, "fp8")
    except NotImplementedError as error:
        pytest.skip(str(error))


class Fp8Cache(DynamicCache):
    def __init__(self, dtype: torch.dtype, k_scale: float, v_scale: float) -> None:
        super().__init__()
        self._dtype, self._scales = dtype, (k_scale, v_scale)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (
            rounded(states * (1 / scale), self._dtype) * scale
            for states, scale in zip((key_states, value_states), self._scales, strict=True)
        )
        return super().update(keys, values, layer_idx, *args, **kwargs)
