"""Workers and engines with hooks that are broken on purpose. The oracle tests must notice this."""

import numpy as np

from kv_transfer.position_map import PositionMap
from target_service.vllm_backend.engine import VllmTarget
from target_service.vllm_backend.worker import TargetWorker
from vllm_hooks import positions_v1, positions_v2


class BreakableWorker(TargetWorker):
    """A worker whose position maps a test can break (`withheld`, `wrong_origin`) and repair (`right`)."""

    def falsify_positions(self, how: str) -> None:
        right = positions_v1.position_map if not hasattr(self, "_right") else self._right
        self._right = right

        def falsified(extra_args: dict | None) -> PositionMap | None:
            found = right(extra_args)
            if found is None or how == "right":
                return found
            if how == "withheld":
                return None
            slots = np.arange(found.prompt_offsets.size)
            kept = (found.prompt_offsets + slots).astype(np.int32)
            return PositionMap(kept, found.decode_offset + slots.size + 37)

        positions_v1.position_map = positions_v2.position_map = falsified


class HashlessTarget(VllmTarget):
    """A target with vLLM's own schedulers, so that block hashes lack positions, and with a BreakableWorker."""

    worker_cls = "tests.engine.target_service.vllm_backend.broken_hooks.BreakableWorker"
    scheduler_cls = "vllm.v1.core.sched.scheduler.Scheduler"
    async_scheduler_cls = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"

    async def falsify_positions(self, how: str) -> None:
        await self._engine.collective_rpc("falsify_positions", args=(how,))
