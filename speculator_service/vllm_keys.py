"""Read a prompt's keys back out of vLLM's paged KV cache.

All backends present a layer's cache as [B, G, N, 2D] (blocks, KV heads, tokens per block; `vllm.v1.worker.utils.
allocate_kv_cache`). On a GPU (FlashAttention, Triton, Flex, FlashInfer) that is true element by element, through the
strides, and the key is the first D. On CPU only the outer two axes are: each head's N * D key elements come first and
are packed for the instruction set in use (transposed; on AMX in tiles), so their order is found by writing known keys.

Run on CPU with AVX-512 (float32, bfloat16). Not run: AMX, NEON, any GPU.
"""

from collections.abc import Sequence

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform


class KeyReader:
    """Reads keys of layers that share one backend and one block size."""

    def __init__(self, layer: Attention, block_size: int) -> None:
        """layer: any of the layers, with its cache bound. block_size: the scheduler's tokens per block."""
        _, _, self._size, double = layer.kv_cache.shape
        self._dim = double // 2
        # A kernel may use smaller blocks than the scheduler hands out: then one id stands for several of the cache.
        self._split = block_size // self._size
        self._order = _packed_order(layer) if current_platform.is_cpu() else None
        transposed = torch.arange(self._size * self._dim).view(self._dim, self._size).T.flatten()
        self._is_transposed = self._order is not None and torch.equal(self._order, transposed)

    def read(self, layer: Attention, blocks: Sequence[int], length: int) -> torch.Tensor:
        """Keys [G, length, D] of the first `length` tokens of the sequence in `blocks`, in the cache's dtype."""
        # Indexing gathers through any strides; index_select would first make the whole cache contiguous on CPU.
        cache, ids = layer.kv_cache, self._cache_blocks(blocks, length).to(layer.kv_cache.device, non_blocking=True)
        if self._order is None:
            keys = cache[..., : self._dim][ids].transpose(0, 1).flatten(1, 2)
        else:
            packed = cache.flatten(2)[..., : self._order.numel()][ids].transpose(0, 1)
            if self._is_transposed:
                keys = packed.unflatten(2, (self._dim, self._size)).transpose(1, 2).flatten(2).transpose(1, 2)
            else:
                keys = packed[..., self._order].unflatten(2, (self._size, self._dim)).flatten(1, 2)
        return keys[:, :length]

    def _cache_blocks(self, blocks: Sequence[int], length: int) -> torch.Tensor:
        """The cache's block ids, int64, of the first `length` tokens."""
        ids = torch.tensor(blocks, dtype=torch.int64).view(-1, 1) * self._split + torch.arange(self._split)
        return ids.flatten()[: -(-length // self._size)]


def _packed_order(layer: Attention) -> torch.Tensor:
    """Where among a CPU block's and head's N * D key elements (n, d) lies: int64 [N * D], n major.

    Writes keys that spell out n and d in base 100, exact in every float type, into a block of its own.
    """
    _, heads, size, double = layer.kv_cache.shape
    dim = double // 2
    n = torch.arange(size).view(-1, 1).expand(size, dim)
    d = torch.arange(dim).expand(size, dim)
    found = torch.zeros(size * dim, dtype=torch.int64)
    # found[place] = n + 10000 d of the element stored there
    for digits, weight in ((n % 100, 1), (n // 100, 100), (d % 100, 10_000), (d // 100, 1_000_000)):
        block = torch.zeros((1, heads, size, double), dtype=layer.kv_cache.dtype)
        key = digits.to(block.dtype)[:, None, :].expand(size, heads, dim).contiguous()
        layer.impl.do_kv_cache_update(layer, key, torch.zeros_like(key), block, torch.arange(size))
        found += block[0, 0].flatten()[: size * dim].long() * weight
    order = torch.empty_like(found)
    order[found % 10_000 * dim + found // 10_000] = torch.arange(size * dim)
    return order
