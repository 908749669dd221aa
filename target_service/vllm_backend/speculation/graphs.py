"""FULL CUDA graphs for decode steps whose requests have different numbers of drafts (V2 model runner).

vLLM captures FULL graphs for 1 + K tokens per request. With remote drafts the number of drafts adapts, so most steps
would get PIECEWISE graphs. Attention backends that support any mix of query lengths (AttentionCGSupport.ALWAYS,
FlashAttention 3) get vLLM's graphs for 1 to 1 + K tokens per request. For other backends, graphs for one token per
request are added.

Run on one H200 with FlashAttention 3 (docs/gpu.md). Tested on CPU: the choice of the graph.
"""

from collections.abc import Callable
from typing import Any

from vllm.config.compilation import CUDAGraphMode


def capture_decode_steps(manager: Any, *, any_lengths: bool) -> None:
    """Choose the graphs again that `manager` (vllm.v1.worker.gpu.cudagraph_utils.CudaGraphManager) will capture.

    Call it before the capture. any_lengths: the attention supports different query lengths in one FULL graph.
    """
    if any_lengths:
        manager.varlen_decode = True
        _choose(manager, manager.decode_query_len)
        return
    longest = manager.decode_query_len
    _choose(manager, 1)
    candidates, captured = manager._candidates, manager._capture_descs
    _choose(manager, longest)
    # vLLM takes the first graph that fits.
    _merge(manager._candidates, candidates, lambda desc: desc.cg_mode != CUDAGraphMode.FULL)
    # As vLLM: large graphs first, because small ones then fit into their memory.
    _merge(manager._capture_descs, captured, lambda desc: -desc.num_tokens)


def _merge(graphs: dict[Any, list[Any]], others: dict[Any, list[Any]], order: Callable[[Any], int]) -> None:
    for key, added in others.items():
        merged = graphs.setdefault(key, [])
        merged += [graph for graph in added if graph not in merged]
        merged.sort(key=order)


def _choose(manager: Any, tokens_per_request: int) -> None:
    longest, manager.decode_query_len = manager.decode_query_len, tokens_per_request
    manager._candidates, manager._capture_descs = {}, {}
    manager._init_candidates()
    manager.decode_query_len = longest
