"""The scheduler classes of the target's engine core: vLLM's own, in a process whose block hashes include positions."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from target_service.vllm_block_hash import hash_positions


class TargetScheduler(Scheduler):
    """vLLM's scheduler; the engine core makes it before it makes the first block hash."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hash_positions()
        super().__init__(*args, **kwargs)


class AsyncTargetScheduler(AsyncScheduler):
    """The same for async scheduling, which is a class of its own in vLLM."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hash_positions()
        super().__init__(*args, **kwargs)
