"""Decode speculation in vLLM's terms: the config of each method, and vLLM's counts.

vLLM 0.29 supports remote drafts (custom_class) on its V1 runner only, without async scheduling. `remote_speculator`
adds the V2 class. With RemoteDraftsConfig vLLM chooses the runner by its other rules: V2 wherever Triton is and no
other feature needs V1.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.v1.executor.abstract import Executor

from kv_transfer.options import DecodeOptions
from skim_common.errors import SkimError
from skim_common.models.source import local_folder
from skim_common.validation import sentence
from target_service.vllm_backend.speculation.proposer import PROPOSER
from target_service.vllm_backend.speculation.remote_drafts import CHANNEL

WITH_A_MODEL = ("draft_model", "medusa", "eagle", "eagle3", "dflash", "dspark")


def checked_decode(fields: Mapping[str, Any] | None) -> DecodeOptions:
    """The `decode` argument of a target, checked. Raises SkimError that names the wrong field."""
    try:
        return DecodeOptions.model_validate(dict(fields)) if fields is not None else DecodeOptions(method="none")
    except ValidationError as e:
        raise SkimError(f"decode option {sentence(e)}") from None


def speculation_options(
    decode: DecodeOptions, draft_model: str | None, draft_channel: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine options that make vLLM speculate with `decode.method`; {} for method none.

    options: the engine's other options. Their `speculative_config` is merged into the result, for example ngram's
    prompt_lookup_max. Raises SkimError for a draft model that is missing or cannot be had.
    """
    if decode.method == "none":
        return {}
    config: dict[str, Any] = {"method": decode.method, "num_speculative_tokens": decode.max_draft_tokens}
    added: dict[str, Any] = {}
    if decode.method == "remote":
        config |= {"method": "custom_class", "model": PROPOSER}
        added["additional_config"] = {**(options.get("additional_config") or {}), CHANNEL: dict(draft_channel or {})}
    elif decode.method in WITH_A_MODEL:
        if not draft_model:
            raise SkimError(
                f"decode method {decode.method} needs draft_model, the folder or hub name of the drafting weights"
            )
        config["model"] = local_folder(draft_model, weights=True)
    return {**added, "speculative_config": {**config, **(options.get("speculative_config") or {})}}


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
