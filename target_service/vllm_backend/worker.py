"""The worker class of the target engine: vLLM's worker of this platform, with the target's hooks."""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from target_service.vllm_backend.cpu_workarounds import (
    repair_expand_kernel,
    repair_rejection_kernel,
    repair_rewinding,
    repair_stages,
)
from target_service.vllm_backend.kv_connector import read_from_one_thread
from target_service.vllm_backend.logits_processors import apply_to_drafts
from target_service.vllm_backend.proposer import RemoteProposer
from vllm_hooks.worker import RestoringWorker


class TargetWorker(RestoringWorker):
    """Adds the remote proposer and the CPU workarounds to the V1 model runner, on every rank."""

    _proposer: RemoteProposer | None = None

    def init_device(self) -> None:
        read_from_one_thread(self.vllm_config.kv_transfer_config)
        super().init_device()
        if self.use_v2_model_runner:
            return
        if current_platform.is_cpu():
            repair_expand_kernel(rejection_sampler)
            repair_rejection_kernel(rejection_sampler)
            repair_rewinding(self.model_runner)
        if self.vllm_config.speculative_config is not None:
            apply_to_drafts(self.model_runner)
        drafter = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, RemoteProposer):
            self._proposer = drafter
            drafter.attach(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        if current_platform.is_cpu() and not self.use_v2_model_runner:
            repair_stages(self.model_runner)

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._proposer:
            self._proposer.begin_step(scheduler_output)
        return super().execute_model(scheduler_output)

    def draft_stats(self) -> dict[str, Any] | None:
        """The counts of the remote proposer; None without one."""
        return self._proposer.stats() if self._proposer else None

    def shutdown(self) -> None:
        if self._proposer:
            self._proposer.shutdown()
        super().shutdown()
