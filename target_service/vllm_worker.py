"""The worker class of the target engine: vLLM's own for this platform, with restored positions in its model runner."""

from contextlib import nullcontext
from typing import Any

from vllm.platforms import current_platform

from target_service.vllm_positions_v1 import restore_positions
from target_service.vllm_positions_v2 import restored_model_state

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class TargetWorker(Worker):
    """Installs the hook of whichever model runner vLLM chose; every rank of a tensor-parallel group does so."""

    def init_device(self) -> None:
        super().init_device()
        if not self.use_v2_model_runner:
            restore_positions(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        with restored_model_state() if self.use_v2_model_runner else nullcontext():
            super().load_model(**kwargs)
