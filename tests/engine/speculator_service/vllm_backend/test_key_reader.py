"""Keys that vLLM's CPU attention has written are read back, from every kind of cache. No engine is started."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, _get_attn_isa

from speculator_service.vllm_backend.keys import STORED_FP8, KeyReader, key_scale
from tests.reference.fp8_cache import needs_fp8_cache, rounded

HEADS, TOKENS, BLOCK = 2, 90, 32
BLOCKS = [5, 1, 3]
"""The places of a prompt of 90 tokens among 8 blocks."""


def written(keys: torch.Tensor, cache: str, k_scale: float, block: int = BLOCK) -> SimpleNamespace:
    """A layer with a cache of this type that holds `keys` [TOKENS, HEADS, D]."""
    size = keys.shape[2]
    layer = SimpleNamespace(
        kv_cache=torch.zeros(8, HEADS, block, 2 * size, dtype=torch.uint8 if cache in STORED_FP8 else keys.dtype),
        kv_cache_dtype=cache,
        isa=_get_attn_isa(keys.dtype, block, size, cache),
        impl=CPUAttentionBackendImpl(4, size, 1.0, HEADS, None, None, cache),
        _k_scale_float=k_scale,
        _v_scale_float=1.0,
    )
    slots = torch.tensor([BLOCKS[token // block] * block + token % block for token in range(len(keys))])
    layer.impl.do_kv_cache_update(layer, keys, torch.randn_like(keys), layer.kv_cache, slots)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("cache", "k_scale"), [("auto", 1.0), ("fp8", 1.0), ("fp8", 0.3), ("fp8_e4m3", 2.5), ("fp8_e5m2", 0.3)]
)
@pytest.mark.parametrize("size", [64, 128])
def test_keys_are_read_back(dtype: torch.dtype, cache: str, k_scale: float, size: int) -> None:
    if cache in STORED_FP8:
        needs_fp8_cache()
    keys = torch.randn(TOKENS, HEADS, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer = written(keys, cache, k_scale)
    [paged] = KeyReader(layer, BLOCK, dtype).read([layer], BLOCKS, TOKENS)
    assert paged.shape == (HEADS, TOKENS, size)
    read = torch.stack([torch.cat(list(paged.pieces(head))).float() for head in range(HEADS)], 1) * key_scale(layer)
    if cache == "auto":
        assert torch.equal(read, keys.float())
        return
    expected = rounded(keys.float() * (1 / k_scale), STORED_FP8[cache]) * k_scale
    assert torch.allclose(read, expected, rtol=1e-6, atol=0)
    assert torch.allclose(read, keys.float(), rtol=0.26 if cache == "fp8_e5m2" else 0.13, atol=0.02)


def test_blocks_of_thousands_of_tokens() -> None:
    """vLLM makes a block as large as the state of a linear attention layer."""
    block, tokens = 4288, 5000
    keys = torch.randn(tokens, HEADS, 32, generator=torch.Generator().manual_seed(0))
    layer = written(keys, "auto", 1.0, block)
    [paged] = KeyReader(layer, block, torch.float32).read([layer], BLOCKS, tokens)
    read = torch.stack([torch.cat(list(paged.pieces(head))) for head in range(HEADS)], 1)
    assert torch.equal(read, keys)
