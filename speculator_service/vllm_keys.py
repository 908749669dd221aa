"""Read a prompt's keys back out of vLLM's paged KV cache.

All backends present a layer's cache as [B, G, N, 2D] (blocks, KV heads, tokens per block; `vllm.v1.worker.utils.
allocate_kv_cache`). On a GPU (FlashAttention, Triton, Flex, FlashInfer) that is true element by element through the
strides and the key is the first D. On CPU only the outer two axes are: inside a block each head's keys are packed for
the instruction set in use (transposed, on AMX in tiles), so the order is found once by writing known keys.

Run on CPU with AVX-512 (float32, bfloat16). Not run: AMX, NEON, any GPU.
"""

from collections.abc import Sequence

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform


class KeyReader:
    """Reads keys of `layers`, which share one backend and one block size."""

    def __init__(self, layer: Attention, block_size: int) -> None:
        """layer: any of the layers, with its cache bound. block_size: the scheduler's tokens per block."""
        # A kernel may use smaller blocks than the scheduler hands out: then one id stands for several of the cache.
        self._split = block_size // layer.kv_cache.shape[2]
        self._order = _packed_order(layer) if current_platform.is_cpu() else None

    def read(self, layer: Attention, blocks: Sequence[int], length: int) -> torch.Tensor:
        """Keys [G, length, D] of the first `length` tokens of the sequence in `blocks`, in the cache's dtype."""
        cache = layer.kv_cache
        size, dim = cache.shape[2], cache.shape[3] // 2
        ids = torch.tensor(blocks, dtype=torch.int64).view(-1, 1) * self._split + torch.arange(self._split)
        ids = ids.flatten()[: -(-length // size)].to(cache.device, non_blocking=True)
        heads_first = cache.transpose(0, 1)
        if self._order is None:
            keys = heads_first[..., :dim].index_select(1, ids)
        else:
            keys = heads_first.index_select(1, ids).flatten(2)[..., self._order]
        return keys.reshape(cache.shape[1], -1, dim)[:, :length]


def _packed_order(layer: Attention) -> torch.Tensor:
    """Where in a CPU block and head, flat over [N * 2D], key element (n, d) lies: int64 [N * D], n major.

    Writes keys that spell out n and d in base 100, exact in every float type, into a block of its own.
    """
    _, heads, size, double = layer.kv_cache.shape
    dim = double // 2
    n = torch.arange(size).view(-1, 1).expand(size, dim)
    d = torch.arange(dim).expand(size, dim)
    flat = torch.zeros(size * double, dtype=torch.int64)
    for digits, weight in ((n % 100, 1), (n // 100, 100), (d % 100, 10_000), (d // 100, 1_000_000)):
        block = torch.full((1, heads, size, double), -1.0).to(layer.kv_cache.dtype)
        key = digits.to(block.dtype)[:, None, :].expand(size, heads, dim).contiguous()
        value = torch.full_like(key, -1.0)
        layer.impl.do_kv_cache_update(layer, key, value, block, torch.arange(size))
        flat += block[0, 0].flatten().long() * weight
    places = torch.nonzero(flat >= 0).squeeze(1)
    n_of, d_of = flat[places] % 10_000, flat[places] // 10_000
    order = torch.empty(size * dim, dtype=torch.int64)
    order[n_of * dim + d_of] = places
    return order
