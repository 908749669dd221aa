"""The hook of the V1 runner, on a runner that has only what the hook reads."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import position_args
from vllm_hooks.positions import restore_positions

KEPT, CONTEXT, MAX_POSITION = np.array([0, 2, 5], np.int32), 8, 16


def hooked_runner(slots: list[int], computed: int, seen: list[Any], *, mrope: bool = False) -> Any:
    """A runner whose one request has the tokens at `slots`; vLLM's host count says that the first is `computed`.

    mrope: the model gets three positions of each token, in a buffer that is longer than the step.
    """
    params = SimpleNamespace(extra_args=position_args(KeptPrompt(np.zeros(3, np.int32), KEPT, CONTEXT)))
    positions = torch.tensor(slots)
    rows = torch.tensor([[*slots, 7]] * 3)
    model_reads = rows if mrope else positions
    runner = SimpleNamespace(
        positions=positions,
        uses_mrope=mrope,
        mrope_positions=SimpleNamespace(gpu=rows),
        device=torch.device("cpu"),
        requests={"r": SimpleNamespace(sampling_params=params)},
        input_batch=SimpleNamespace(req_ids=["r"], num_reqs=1, num_computed_tokens_cpu=np.array([computed])),
        query_start_loc=SimpleNamespace(np=np.array([0, len(slots)])),
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(max_position_embeddings=MAX_POSITION)),
        _model_forward=lambda *args, **kwargs: seen.append(model_reads.tolist()),
    )
    restore_positions(runner)
    return runner


@pytest.mark.parametrize(
    ("slots", "computed", "positions"),
    [
        ([0, 1, 2], 0, [0, 2, 5]),
        ([2, 3, 4], 2, [5, 8, 9]),
        # Drafts beyond the last position stay at it.
        ([9, 10, 11, 12], 9, [14, 15, 15, 15]),
        # With asynchronous scheduling the host counts drafts that were rejected: true slots before the counted ones.
        ([8, 9, 10, 11, 12], 14, [13, 14, 15, 15, 15]),
        ([7, 8, 9, 10, 11], 99, [12, 13, 14, 15, 15]),
    ],
)
def test_the_model_sees_original_positions_and_vllm_its_slots(
    slots: list[int], computed: int, positions: list[int]
) -> None:
    seen: list[list[int]] = []
    runner = hooked_runner(slots, computed, seen)
    runner._model_forward()
    assert seen == [positions]
    assert runner.positions.tolist() == slots


def test_all_three_positions_of_mrope_are_restored() -> None:
    seen: list[list[list[int]]] = []
    runner = hooked_runner([1, 2, 3, 4], 1, seen, mrope=True)
    runner._model_forward()
    assert seen == [[[2, 5, 8, 9, 7]] * 3]
    assert runner.mrope_positions.gpu.tolist() == [[1, 2, 3, 4, 7]] * 3
    assert runner.positions.tolist() == [1, 2, 3, 4]


def test_slots_are_put_back_after_a_forward_that_fails() -> None:
    runner = hooked_runner([0, 1, 2], 0, [])

    def fail() -> None:
        raise RuntimeError

    runner._model_forward = fail
    restore_positions(runner)
    with pytest.raises(RuntimeError):
        runner._model_forward()
    assert runner.positions.tolist() == [0, 1, 2]
