"""Reads a prompt's keys from vLLM's paged KV cache.

The shape of a layer's cache is [B, G, N, 2D] in all backends (blocks, KV heads, tokens per block). On a GPU all four
axes are real, through the strides, and the key is the first D elements. On CPU only the outer two axes are real: the
N * D key elements of a head come first, in an order that depends on the instruction set. An FP8 cache has the same
shape in bytes and one scale per layer: this module returns stored values; the scale is part of the factor on q·k.

The cache of an MLA layer (DeepSeek V2 and V3, Kimi K2) is [B, N, L + R]: one vector per token, the normalised latent c
(L = kv_lora_rank) and the rotary key r of all heads (R = qk_rope_head_dim). The key of head h is [W_UK^h c, r]. So
q·k = (W_UK^hT q_nope)·c + q_rope·r, and with `absorbed` queries MLA is MQA with one KV head of size L + R (DeepSeek-V2,
arXiv 2405.04434, 2.1.2 and appendix C).

Run on CPU with AVX-512 and AMX, and on one H200 with FlashAttention 3 (docs/gpu.md). Not run: NEON, and MLA on a GPU.
"""

from collections.abc import Iterator, Sequence

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.platforms import current_platform

from speculator_service.scoring.paged import Pages

PIECE_TOKENS = 4096
"""Number of keys that are copied at once on CPU."""

PLAIN_CACHES = ("auto", "float16", "bfloat16")
"""Values of `layer.kv_cache_dtype` whose cache holds the keys themselves."""

STORED_FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""Values of `layer.kv_cache_dtype` whose cache holds the keys divided by one scale, and the type of its bytes."""


def key_scale(layer: Attention | MLAAttention) -> float:
    """The factor between the keys of `layer` and the stored values that `KeyReader` returns; 1 without FP8."""
    return layer._k_scale_float if layer.kv_cache_dtype in STORED_FP8 else 1.0


class KeyReader:
    """Reads keys of layers that share one backend and one block size."""

    def __init__(self, layer: Attention | MLAAttention, block_size: int, dtype: torch.dtype) -> None:
        """layer: any of the layers; its cache must exist. block_size: tokens per block of the scheduler. dtype: of the
        model."""
        _, _, self._size, width = _cache(layer).shape
        latent = isinstance(layer, MLAAttention)
        self.dim = width if latent else width // 2
        # A kernel may use smaller blocks than the scheduler. Then one block of the scheduler is several of the cache.
        self._split = block_size // self._size
        self.order = _packed_order(layer, dtype) if current_platform.is_cpu() and not latent else None
        transposed = torch.arange(self._size * self.dim).view(self.dim, self._size).T.flatten()
        self._is_transposed = self.order is not None and torch.equal(self.order, transposed)

    def read(self, layers: Sequence[Attention | MLAAttention], blocks: Sequence[int], length: int) -> list["PagedKeys"]:
        """The keys of each layer for the first `length` tokens of the sequence in `blocks`. Copies nothing yet."""
        ids = torch.tensor(blocks, dtype=torch.int64).view(-1, 1) * self._split + torch.arange(self._split)
        ids = ids.flatten()[: -(-length // self._size)].to(layers[0].kv_cache.device, non_blocking=True)
        return [PagedKeys(self, _cache(layer), ids, length) for layer in layers]

    def gather(self, cache: torch.Tensor, ids: torch.Tensor, kv_head: int) -> torch.Tensor:
        """A copy of one head's keys in these blocks: [blocks * N, D], in the dtype of the cache."""
        if self.order is None:
            # Indexing works with any strides. index_select would first copy the whole cache to make it contiguous.
            return cache[ids, kv_head, :, : self.dim].flatten(0, 1)
        # Copies whole runs of N * D elements. Copying single elements took a third of the scoring time.
        runs = cache.view(-1, self.order.numel()).index_select(0, 2 * (ids * cache.shape[1] + kv_head))
        if self._is_transposed:
            return runs.view(-1, self.dim, self._size).transpose(0, 1).flatten(1).T
        return runs[:, self.order].view(-1, self.dim)


class PagedKeys:
    """One layer's keys of one sequence, as `scoring.paged.PagedKeys`."""

    def __init__(self, reader: KeyReader, cache: torch.Tensor, ids: torch.Tensor, length: int) -> None:
        self._reader, self._cache, self._ids, self._length = reader, cache, ids, length

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, length, D)."""
        return self._cache.shape[1], self._length, self._reader.dim

    @property
    def pages(self) -> Pages | None:
        """The keys in the cache itself, on a GPU; None where they are packed, so that no view of the cache shows
        them."""
        return Pages(self._cache[..., : self.shape[2]], self._ids) if self._reader.order is None else None

    def pieces(self, kv_head: int) -> Iterator[torch.Tensor]:
        """[m, D] each."""
        size = self._cache.shape[2]
        # On CPU a small piece stays in the processor's cache, and its memory is reused. A GPU needs few launches.
        step = max(1, PIECE_TOKENS // size) if self._cache.is_cpu else len(self._ids)
        for first in range(0, len(self._ids), step):
            keys = self._reader.gather(self._cache, self._ids[first : first + step], kv_head)
            yield keys[: self._length - first * size]


def _cache(layer: Attention | MLAAttention) -> torch.Tensor:
    """The cache of `layer` as [B, G, N, 2D], of MLA as [B, 1, N, D], in the type of its elements."""
    cache = layer.kv_cache.unsqueeze(1) if isinstance(layer, MLAAttention) else layer.kv_cache
    return cache.view(STORED_FP8[layer.kv_cache_dtype]) if layer.kv_cache_dtype in STORED_FP8 else cache


def _packed_order(layer: Attention, dtype: torch.dtype) -> torch.Tensor:
    """int64 [N * D], n major: the place of element (n, d) among the N * D key elements of one block and head on CPU.

    Writes keys of type `dtype` into a separate block. They contain the digits of n and d in base 8, which every type of
    a cache can hold (FP8 included).
    """
    _, heads, size, double = layer.kv_cache.shape
    dim = double // 2
    n = torch.arange(size).view(-1, 1).expand(size, dim)
    d = torch.arange(dim).expand(size, dim)
    found = torch.zeros(size * dim, dtype=torch.int64)
    # found[place] = n + size d of the element stored there
    for index, weight, count in ((n, 1, size), (d, size, dim)):
        # Blocks of models with a state space hold thousands of tokens.
        for power in (8**digit for digit in range(count.bit_length()) if 8**digit < count):
            block = torch.zeros((1, heads, size, double), dtype=layer.kv_cache.dtype)
            # A little more than the digit, because vLLM's CPU kernels round to FP8 towards zero.
            digits = (index // power % 8).to(dtype) * (1.03 * key_scale(layer))
            key = digits[:, None, :].expand(size, heads, dim).contiguous()
            layer.impl.do_kv_cache_update(layer, key, torch.zeros_like(key), block, torch.arange(size))
            stored = block.view(STORED_FP8.get(layer.kv_cache_dtype, block.dtype))
            found += stored[0, 0].flatten()[: size * dim].float().round().long() * (power * weight)
    order = torch.empty_like(found)
    order[found % size * dim + found // size] = torch.arange(size * dim)
    return order


def absorbed(layer: Attention | MLAAttention, queries: torch.Tensor) -> torch.Tensor:
    """Captured queries for the cache of `layer`: as they are or, of MLA, [S, H, L + R] of [S, H, P + R] (P: no
    rotation), by the product of `MLAAttention.forward_impl` for decode tokens."""
    if isinstance(layer, Attention):
        return queries
    nope, rope = queries.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], dim=-1)
    by_head = nope.transpose(0, 1)
    if layer.is_amx_bmm_enabled:
        # This backend keeps W_UK only in a packed form.
        latent = by_head.new_empty((*by_head.shape[:2], layer.kv_lora_rank))
        ops.bmm_cpu(latent, by_head.contiguous(), layer.impl._w_uk_packed, True, None)
    else:
        latent = torch.bmm(by_head, layer.W_UK_T)
    return torch.cat([latent.transpose(0, 1), rope], dim=-1)
