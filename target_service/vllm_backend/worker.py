"""The worker class of the target engine: vLLM's own for this platform, with our hooks in its model runner."""

from contextlib import nullcontext
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from target_service.vllm_backend.cpu_workarounds import repair_expand_kernel, repair_rejection_kernel, repair_rewinding
from target_service.vllm_backend.kv_connector import read_from_one_thread
from target_service.vllm_backend.proposer import RemoteProposer
from vllm_hooks.positions_v1 import restore_positions
from vllm_hooks.positions_v2 import restored_model_state

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class TargetWorker(Worker):
    """Installs the hook of whichever model runner vLLM chose; every rank of a tensor-parallel group does so."""

    _proposer: RemoteProposer | None = None

    def init_device(self) -> None:
        read_from_one_thread(self.vllm_config.kv_transfer_config)
        super().init_device()
        if self.use_v2_model_runner:
            return
        restore_positions(self.model_runner)
        if current_platform.is_cpu():
            repair_expand_kernel(rejection_sampler)
            repair_rejection_kernel(rejection_sampler)
            repair_rewinding(self.model_runner)
        drafter = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, RemoteProposer):
            self._proposer = drafter
            drafter.attach(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        with restored_model_state() if self.use_v2_model_runner else nullcontext():
            super().load_model(**kwargs)

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._proposer:
            self._proposer.begin_step(scheduler_output)
        return super().execute_model(scheduler_output)

    def draft_stats(self) -> dict[str, Any] | None:
        """What the remote proposer counted; None without one."""
        return self._proposer.stats() if self._proposer else None

    def shutdown(self) -> None:
        if self._proposer:
            self._proposer.shutdown()
        super().shutdown()
