"""A VllmConfig that allows remote drafts (vLLM's method custom_class) on the V2 model runner.

vLLM 0.29 supports custom_class on its V1 runner only, without async scheduling. `remote_speculator` adds the V2 class.
With this config vLLM chooses the runner by its other rules: V2 wherever Triton is and no other feature needs V1.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.config import VllmConfig
from vllm.v1.executor.abstract import Executor

_REFUSED = "speculative method 'custom_class'"


class RemoteDraftsConfig(VllmConfig):
    """vLLM's configuration of a target with remote drafts. vLLM's processes run `__post_init__` again."""

    def __post_init__(self) -> None:
        # vLLM refuses async scheduling with custom_class, so it is decided here.
        asked = self.scheduler_config.async_scheduling
        self.scheduler_config.async_scheduling = False
        super().__post_init__()
        if asked is None:
            asked = self.device_config.device_type != "cpu" and Executor.get_class(self).supports_async_scheduling()
        if asked and self.use_v2_model_runner:
            self.scheduler_config.async_scheduling = True
            self.model_config.disable_cascade_attn = True

    def _get_v2_model_runner_unsupported_features(self) -> list[str]:
        unsupported = super()._get_v2_model_runner_unsupported_features()
        # The first pipeline stage embeds the drafts, but only the last stage has a speculator. `start` refuses this.
        if self.parallel_config.pipeline_parallel_size > 1:
            return unsupported
        return [feature for feature in unsupported if feature != _REFUSED]


@contextmanager
def remote_drafts_config() -> Iterator[None]:
    """In this context, vLLM's AsyncEngineArgs create a RemoteDraftsConfig."""
    from vllm.engine import arg_utils

    stock = arg_utils.VllmConfig
    arg_utils.VllmConfig = RemoteDraftsConfig
    try:
        yield
    finally:
        arg_utils.VllmConfig = stock
