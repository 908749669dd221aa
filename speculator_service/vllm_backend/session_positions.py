"""Sessions over a kept prompt: the speculator reads its tokens at their original positions, as the target does.

Slots count kept tokens, positions the original prompt. The model's positions are shifted while it runs, by a table from
KV slot to shift: a slot belongs to one token alone, so neither the order of the batch nor the model runner (V1 or V2)
matters. In place and taken back afterwards, because CUDA graphs read that buffer and the runner uses it on.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from vllm.forward_context import get_forward_context
from vllm.v1.core.sched.output import SchedulerOutput

from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import KEPT_POSITIONS, PositionMap, position_map
from kv_transfer.positions import encode_positions
from speculator_service.vllm_backend.sessions import EngineSession


def kept_session(prompt: KeptPrompt) -> EngineSession:
    """A session over the kept tokens, whose requests find no KV that was made at other positions."""
    if prompt.is_dense:
        return EngineSession(prompt.token_ids, prompt.context_length)
    encoded = encode_positions(prompt.positions, prompt.context_length)
    # vLLM mixes the salt into every block's hash.
    salt = hashlib.sha256(encoded).hexdigest()
    return EngineSession(prompt.token_ids, prompt.context_length, salt, {KEPT_POSITIONS: encoded})


class RestoredPositions:
    """Shifts the positions of the requests that carry KEPT_POSITIONS; the model of a worker calls it through hooks."""

    def __init__(self, model: torch.nn.Module, slots: int, block_size: int, layer: str, device: torch.device) -> None:
        """slots: of the whole KV cache. layer: any attention layer's name, whose slot mapping tells a step's slots."""
        self._requests: dict[str, tuple[PositionMap, list[int]]] = {}
        self._table = torch.zeros(slots, dtype=torch.int64, device=device)
        self._block_size = block_size
        self._layer = layer
        self._slots: torch.Tensor | None = None
        self._shift: torch.Tensor | None = None
        model.register_forward_pre_hook(self._restore, with_kwargs=True)
        model.register_forward_hook(self._take_back, with_kwargs=True, always_call=True)

    def expect(self, output: SchedulerOutput) -> None:
        """Follow one scheduling step, and note the shifts of the slots that it fills."""
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            restored = position_map(new.sampling_params.extra_args) if new.sampling_params else None
            if restored is not None:
                self._requests[new.req_id] = restored, list(new.block_ids[0])
                starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request_id, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request_id in self._requests:
                known = self._requests[request_id][1]
                if request_id in cached.resumed_req_ids:
                    known.clear()
                known += blocks[0] if blocks else []
                starts[request_id] = start
        self._note({id: (start, output.num_scheduled_tokens[id]) for id, start in starts.items()})

    def _note(self, ranges: dict[str, tuple[int, int]]) -> None:
        self._slots = None
        if not ranges:
            return
        slots, shifts = [], []
        for request_id, (start, count) in ranges.items():
            restored, blocks = self._requests[request_id]
            index = np.arange(start, start + count)
            slots.append(np.array(blocks)[index // self._block_size] * self._block_size + index % self._block_size)
            shifts.append(np.empty(count, np.int64))
            restored.fill(shifts[-1], start)
        device = self._table.device
        self._slots = torch.from_numpy(np.concatenate(slots)).to(device)
        self._table[self._slots] = torch.from_numpy(np.concatenate(shifts)).to(device)

    def _restore(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._slots is None:
            return
        mapping = get_forward_context().slot_mapping[self._layer]
        # Padding has slot -1.
        self._shift = torch.where(mapping >= 0, self._table[mapping.clamp(min=0).long()], 0)
        self._positions(args, kwargs)[: mapping.numel()].add_(self._shift)

    def _take_back(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._shift is None or self._slots is None:
            return
        self._positions(args, kwargs)[: self._shift.numel()].sub_(self._shift)
        self._table[self._slots] = 0
        self._shift = self._slots = None

    @staticmethod
    def _positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """vLLM's models are called as model(input_ids, positions, ...)."""
        positions: torch.Tensor = kwargs["positions"] if "positions" in kwargs else args[1]
        return positions
