"""FULL CUDA graphs for steps that only draft, on the V2 model runner.

The replay of a FULL graph runs no Python, so it captures no queries. vLLM chooses the graph of each step in
`CudaGraphManager.dispatch` (vllm.v1.worker.gpu.cudagraph_utils). Here a step that captures queries gets a PIECEWISE
graph, in which attention runs in Python. All other steps keep vLLM's choice: FULL for steps that decode one token per
request, which are most steps of a drafting round. Restored positions need no Python in the forward (`positions_v2`).

A query that is not captured is NaN, so a wrong choice fails the selection and returns no wrong scores.

Run on one H200 (docs/gpu.md). Tested on CPU: the choice.
"""

from collections.abc import Callable
from typing import Any

from vllm.config.compilation import CUDAGraphMode


def piecewise_while(manager: Any, captures: Callable[[], bool]) -> None:
    """Change `manager.dispatch`: no FULL graph while `captures()` is true. manager: a CudaGraphManager.

    The graphs of mixed steps must not be FULL (CUDAGraphMode.mixed_mode).
    """
    dispatch = manager.dispatch

    def dispatch_with_capture(
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        max_query_len: int | None = None,
    ) -> Any:
        chosen = dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len)
        if chosen.cg_mode != CUDAGraphMode.FULL or not captures():
            return chosen
        # FULL graphs are for uniform steps only. So vLLM finds the PIECEWISE graph, or none.
        return dispatch(num_reqs, num_tokens, None, num_active_loras, None)

    manager.dispatch = dispatch_with_capture
