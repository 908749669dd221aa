"""Restored positions: a model gets the original positions of kept tokens. Everything else in vLLM uses their slots.

**V1 runner** (vllm.v1.worker.gpu_model_runner): its forward is wrapped. **V2 runner** (vllm.v1.worker.gpu.model_runner,
the default on GPUs): it asks its ModelState for model inputs, whose "positions" replace its own.

With M-RoPE a token has three positions, in a buffer of their own; those of a token of text are the same, so all get the
same offset. Drafts beyond the end of an answer may exceed the model's positions. They get the last one, where the table
of the rotary embedding ends; their tokens are never returned.

Run on CPU, V2 in Triton's interpreter, eager; and V2 on one H200 with CUDA graphs (docs/gpu.md). Not run: V1 on a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.position_map import Int64Array, PositionMap, batch_offsets, position_map
from skim_common.models.info import position_count


def _shift(positions: torch.Tensor, offsets: Int64Array, config: Any) -> None:
    """In place. positions: int64 [tokens] or, with M-RoPE, [3, tokens]. config: the text model's."""
    positions += async_tensor_h2d(offsets, positions.device)
    # Here and not in the offsets: with asynchronous scheduling the counts on the host run ahead of the slots.
    positions.clamp_(max=position_count(config) - 1)


def restore_positions(runner: Any) -> None:
    """Wrap `runner._model_forward` of the V1 runner.

    When it is called, slot mapping and attention metadata have already been computed from the slots. The offsets are
    added in place, because CUDA graphs read this buffer. The slots are put back after the forward, because drafters
    compute slots from the buffer. A step without kept prompts runs as without the hook.
    """
    forward = runner._model_forward

    def model_forward(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        maps = [position_map(runner.requests[id].sampling_params.extra_args) for id in batch.req_ids[: batch.num_reqs]]
        # With async scheduling and drafts, the counts on the host include drafts that may be rejected. This changes no
        # offset, because all offsets after the prompt are equal.
        offsets = batch_offsets(maps, runner.query_start_loc.np, batch.num_computed_tokens_cpu)
        if offsets is None:
            return forward(*args, **kwargs)
        buffer = runner.mrope_positions.gpu if runner.uses_mrope else runner.positions
        positions = buffer[..., : offsets.size]
        slots = positions.clone()
        _shift(positions, offsets, runner.model_config.hf_text_config)
        try:
            return forward(*args, **kwargs)
        finally:
            positions.copy_(slots)

    runner._model_forward = model_forward


@contextmanager
def restored_model_state() -> Iterator[None]:
    """A model that a V2 runner loads in this context gets a ModelState that restores positions."""
    import vllm.v1.worker.gpu.model_states as model_states

    resolve = model_states.resolve_model_state_cls
    model_states.resolve_model_state_cls = lambda vllm_config, model: _restoring(resolve(vllm_config, model))
    try:
        yield
    finally:
        model_states.resolve_model_state_cls = resolve


@cache
def _restoring(base: type) -> type:
    """A subclass of the ModelState class `base` that returns original positions."""

    class RestoringModelState(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._maps: dict[str, PositionMap] = {}
            # Its address must not change: CUDA graphs are captured with it.
            self._restored = torch.zeros(self.max_num_tokens, dtype=torch.int64, device=self.device)

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            params = new_req_data.sampling_params
            restored = position_map(params.extra_args) if params else None
            # The key is the request id, because the ids of dummy batches (profiling, data parallel) match no entry.
            if restored is not None:
                self._maps[new_req_data.req_id] = restored

        def remove_request(self, req_id: str) -> None:
            super().remove_request(req_id)
            self._maps.pop(req_id, None)

        def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
            inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)
            if "positions" not in inputs:
                inputs["positions"] = self._restored[: input_batch.num_tokens_after_padding]
                inputs["positions"].copy_(input_batch.positions[: input_batch.num_tokens_after_padding])
            maps = [self._maps.get(id) for id in input_batch.req_ids]
            offsets = batch_offsets(maps, input_batch.query_start_loc_np, input_batch.num_computed_tokens_np)
            if offsets is not None:
                _shift(inputs["positions"][..., : offsets.size], offsets, self.model_config.hf_text_config)
            return inputs

        def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
            inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)
            inputs.setdefault("positions", self._restored[:num_tokens])
            return inputs

    RestoringModelState.__name__ = f"Restoring{base.__name__}"
    return RestoringModelState
