"""The worker class of the target engine: vLLM's worker of this platform, with the target's hooks."""

from contextlib import nullcontext
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.gpu.async_utils import AsyncOutput

from target_service.vllm_backend.continued_answers import continue_in_batch
from target_service.vllm_backend.kv_connector import read_from_one_thread
from target_service.vllm_backend.speculation.proposer import RemoteProposer
from target_service.vllm_backend.speculation.remote_drafts import REPORT
from target_service.vllm_backend.speculation.remote_speculator import RemoteSpeculator, remote_speculator
from target_service.vllm_backend.v1_repairs import apply_to_drafts, repair_kernels, repair_rewinding, repair_stages
from vllm_hooks.worker import RestoringWorker


class TargetWorker(RestoringWorker):
    """Adds the remote drafts to both model runners, and continued answers and repairs to V1, on every rank."""

    _drafter: RemoteProposer | RemoteSpeculator | None = None

    def init_device(self) -> None:
        read_from_one_thread(self.vllm_config.kv_transfer_config)
        with remote_speculator() if self.use_v2_model_runner else nullcontext():
            super().init_device()
        if not self.use_v2_model_runner:
            if current_platform.is_cpu():
                repair_kernels(rejection_sampler)
                repair_rewinding(self.model_runner)
            if self.vllm_config.speculative_config is not None:
                apply_to_drafts(self.model_runner)
        drafter = getattr(self.model_runner, "speculator" if self.use_v2_model_runner else "drafter", None)
        if isinstance(drafter, RemoteProposer | RemoteSpeculator):
            self._drafter = drafter
            drafter.attach(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        if current_platform.is_cpu() and not self.use_v2_model_runner:
            repair_stages(self.model_runner)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        if not self.use_v2_model_runner:
            continue_in_batch(self.model_runner)

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._drafter:
            self._drafter.begin_step(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        if isinstance(self._drafter, RemoteSpeculator) and isinstance(output, AsyncOutput):
            setattr(output.model_runner_output, REPORT, self._drafter.report)
        return output

    def changes_a_layer(self, adapter: int) -> bool:
        """Whether this rank has a layer that the loaded adapter changes. vLLM ignores names of other layers."""
        manager = self.get_model().lora_manager
        return any(map(manager.get_adapter(adapter).check_lora_name, manager.modules))

    def draft_stats(self) -> dict[str, Any] | None:
        """The counts of the remote drafts; None without a drafter."""
        return self._drafter.drafts.stats() if self._drafter else None

    def shutdown(self) -> None:
        if self._drafter:
            self._drafter.drafts.shutdown()
        super().shutdown()
