"""vLLM's manager of CUDA graphs (V2 runner) without a GPU, for tests of the choice of a graph."""

from types import SimpleNamespace
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager


def graph_manager(mode: CUDAGraphMode, *, sizes: list[int], requests: int, decode_tokens: int) -> Any:
    """A CudaGraphManager as after the capture of its graphs.

    sizes: captured numbers of tokens. requests: the most in a step. decode_tokens: 1 + K.
    """
    found = object.__new__(CudaGraphManager)
    fields = {
        "vllm_config": SimpleNamespace(speculative_config=None),
        "compilation_config": SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=sizes[-1]),
        "cudagraph_mode": mode,
        "max_num_reqs": requests,
        "decode_query_len": decode_tokens,
        "varlen_decode": False,
        "lora_capture_cases": [0],
        "_lora_dispatch_map": {},
        "_candidates": {},
        "_capture_descs": {},
        "_graphs_captured": True,
    }
    vars(found).update(fields)
    found._init_candidates()
    return found
