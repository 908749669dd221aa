"""The choice of a CUDA graph for steps with remote drafts, with vLLM's own manager. No graph is captured."""

from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from target_service.vllm_backend.speculation.graphs import capture_decode_steps
from tests.reference.cuda_graphs import graph_manager

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]
MOST = 4
FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
RAGGED, UNDRAFTED, UNIFORM, PROMPT = [1, 3, 5, 1], [1, 1, 1], [5, 5, 5], [1, 5, 40]


def manager(mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE) -> Any:
    """vLLM's manager of a target with K = 4, as after the capture of its graphs."""
    return graph_manager(mode, sizes=SIZES, requests=16, decode_tokens=1 + MOST)


def chosen(manager: Any, lengths: list[int]) -> Any:
    """As GPUModelRunner.execute_model asks for the graph of a step with these tokens per request."""
    uniform = lengths[0] if len(set(lengths)) == 1 else None
    return manager.dispatch(len(lengths), sum(lengths), uniform, num_active_loras=0, max_query_len=max(lengths))


def test_stock_vllm_has_full_graphs_for_uniform_steps_only() -> None:
    modes = [chosen(manager(), lengths).cg_mode for lengths in (RAGGED, UNDRAFTED, UNIFORM, PROMPT)]
    assert modes == [PIECEWISE, PIECEWISE, FULL, PIECEWISE]


@pytest.mark.parametrize(
    ("any_lengths", "expected"), [(True, [FULL, FULL, FULL, PIECEWISE]), (False, [PIECEWISE, FULL, FULL, PIECEWISE])]
)
def test_decode_steps_get_full_graphs(any_lengths: bool, expected: list[CUDAGraphMode]) -> None:
    ours = manager()
    capture_decode_steps(ours, any_lengths=any_lengths)
    found = [chosen(ours, lengths) for lengths in (RAGGED, UNDRAFTED, UNIFORM, PROMPT)]
    assert [desc.cg_mode for desc in found] == expected
    for desc, lengths in zip(found, (RAGGED, UNDRAFTED, UNIFORM, PROMPT), strict=True):
        assert desc.num_tokens >= sum(lengths)
        assert desc.num_reqs is None or desc.num_reqs >= len(lengths)
    assert ours.decode_query_len == 1 + MOST


@pytest.mark.parametrize("any_lengths", [True, False])
def test_every_graph_that_can_be_chosen_is_captured_once(any_lengths: bool) -> None:
    ours = manager()
    capture_decode_steps(ours, any_lengths=any_lengths)
    captured = [desc for descs in ours._capture_descs.values() for desc in descs]
    assert len(captured) == len(set(captured))
    assert {desc for descs in ours._candidates.values() for desc in descs} == set(captured)


@pytest.mark.parametrize("any_lengths", [True, False])
def test_without_full_graphs_nothing_changes(any_lengths: bool) -> None:
    ours, stock = manager(PIECEWISE), manager(PIECEWISE)
    capture_decode_steps(ours, any_lengths=any_lengths)
    assert (ours._candidates, ours._capture_descs) == (stock._candidates, stock._capture_descs)
