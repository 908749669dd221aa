"""The choice of a CUDA graph, with vLLM's own manager of the V2 runner. No graph is captured."""

from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from speculator_service.vllm_backend.query_capture import piecewise_while
from tests.reference.cuda_graphs import graph_manager

SIZES = [1, 2, 4, 8, 16, 32, 64]
FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


def manager(mode: CUDAGraphMode) -> Any:
    """vLLM's manager of a model without speculation, as after the capture of its graphs."""
    return graph_manager(mode, sizes=SIZES, requests=32, decode_tokens=1)


def chosen(manager: Any, requests: int, tokens: int) -> CUDAGraphMode:
    """As GPUModelRunner.execute_model asks for the graph of a step."""
    each = tokens // requests if tokens % requests == 0 else None
    return manager.dispatch(requests, tokens, each, num_active_loras=0, max_query_len=each or tokens).cg_mode


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL_AND_PIECEWISE, PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY])
@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (3, 3), (32, 32), (1, 40), (3, 50), (4, 64), (2, 200)])
def test_no_step_that_captures_gets_a_full_graph(mode: CUDAGraphMode, requests: int, tokens: int) -> None:
    stock, ours, captures = manager(mode), manager(mode), False
    piecewise_while(ours, lambda: captures)
    plain = chosen(stock, requests, tokens)
    assert chosen(ours, requests, tokens) == plain
    captures = True
    without_full = {CUDAGraphMode.FULL_AND_PIECEWISE: PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY: NONE}
    assert chosen(ours, requests, tokens) == (without_full[mode] if plain == FULL else plain)


def test_steps_that_only_draft_get_full_graphs() -> None:
    ours = manager(CUDAGraphMode.FULL_AND_PIECEWISE)
    piecewise_while(ours, lambda: False)
    assert [chosen(ours, requests, requests) for requests in (1, 3, 32)] == [FULL] * 3
    assert chosen(ours, 3, 50) == PIECEWISE
