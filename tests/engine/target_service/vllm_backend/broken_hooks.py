"""Workers and engines with hooks that are broken on purpose. The oracle tests must notice this."""

from typing import Any

import numpy as np
import torch

from kv_transfer.position_map import PositionMap
from target_service.vllm_backend import scheduler
from target_service.vllm_backend.engine import VllmTarget
from target_service.vllm_backend.worker import TargetWorker
from vllm_hooks import positions


class BreakableWorker(TargetWorker):
    """A worker whose hooks a test can break and repair."""

    def keep_padding(self, keep: bool) -> None:
        """The scheduler, which runs in this process, leaves the padding of seeded requests as it is."""
        self._drop = getattr(self, "_drop", scheduler._drop_padding)
        scheduler._drop_padding = (lambda *_: None) if keep else self._drop

    def falsify_positions(self, how: str) -> None:
        """Restored positions are `withheld`, `wrong_origin`, `wrapped` (they begin again at 50), or `right`."""
        right = positions.position_map if not hasattr(self, "_right") else self._right
        self._right = right

        def falsified(extra_args: dict | None) -> PositionMap | None:
            found = right(extra_args)
            if found is None or how == "right":
                return found
            if how == "withheld":
                return None
            slots = np.arange(found.prompt_offsets.size)
            kept = (found.prompt_offsets + slots).astype(np.int32)
            if how == "wrapped":
                return PositionMap(kept % 50, found.decode_offset + slots.size)
            return PositionMap(kept, found.decode_offset + slots.size + 37)

        positions.position_map = falsified

    def restore_one_row(self) -> None:
        """With M-RoPE, only the first of a token's three positions is restored."""
        right = positions.async_tensor_h2d

        def first_row(offsets: Any, device: torch.device) -> torch.Tensor:
            given = right(offsets, device)
            return torch.stack([given, torch.zeros_like(given), torch.zeros_like(given)])

        positions.async_tensor_h2d = first_row


class BreakableTarget(VllmTarget):
    """A target with a BreakableWorker."""

    worker_cls = "tests.engine.target_service.vllm_backend.broken_hooks.BreakableWorker"

    async def remember_more(self, tokens: int) -> None:
        await self._engine.collective_rpc("remember_more", args=(tokens,))

    async def keep_padding(self, keep: bool) -> None:
        await self._engine.collective_rpc("keep_padding", args=(keep,))

    async def falsify_positions(self, how: str) -> None:
        await self._engine.collective_rpc("falsify_positions", args=(how,))

    async def restore_one_row(self) -> None:
        await self._engine.collective_rpc("restore_one_row")


class HashlessTarget(BreakableTarget):
    """A target with vLLM's own schedulers, so that block hashes lack positions."""

    scheduler_cls = "vllm.v1.core.sched.scheduler.Scheduler"
    async_scheduler_cls = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
