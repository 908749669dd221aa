"""Restored positions in vLLM's V2 model runner (vllm.v1.worker.gpu.model_runner), the default on GPUs.

The V2 runner asks its ModelState for model inputs. The entry "positions" of the result replaces the runner's own
positions. Both capture and replay of CUDA graphs use one persistent buffer. With M-RoPE it is vLLM's own (RopeState),
which holds three positions of each token and is filled anew in each step; a token of text has the same one three times.

Run on CPU in Triton's interpreter, eager, and on one H200 with CUDA graphs (docs/gpu.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.position_map import PositionMap, batch_offsets, position_map
from skim_common.models.info import position_count


@contextmanager
def restored_model_state() -> Iterator[None]:
    """A model that is loaded in this context gets a ModelState that restores positions."""
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
            self._shift(inputs["positions"], input_batch)
            return inputs

        def _shift(self, positions: torch.Tensor, batch: Any) -> None:
            """positions: int64 [tokens] or, with M-RoPE, [3, tokens]; changed in place."""
            maps = [self._maps.get(id) for id in batch.req_ids]
            offsets = batch_offsets(maps, batch.query_start_loc_np, batch.num_computed_tokens_np)
            if offsets is not None:
                positions[..., : offsets.size] += async_tensor_h2d(offsets, self.device)
                # See `positions_v1.restore_positions`.
                positions.clamp_(max=position_count(self.model_config.hf_text_config) - 1)

        def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
            inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)
            inputs.setdefault("positions", self._restored[:num_tokens])
            return inputs

    RestoringModelState.__name__ = f"Restoring{base.__name__}"
    return RestoringModelState
