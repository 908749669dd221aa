"""Decode speculation in vLLM's terms: the config of each method, and the sampling parameters of verified requests."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from kv_transfer.options import DecodeOptions
from skim_common.errors import SkimError
from skim_common.models.source import local_folder
from skim_common.validation import sentence
from target_service.vllm_backend.speculation.proposer import PROPOSER
from target_service.vllm_backend.speculation.remote_drafts import CHANNEL

WITH_A_MODEL = ("draft_model", "medusa", "eagle", "eagle3", "dflash", "dspark")


class TargetSamplingParams(SamplingParams):
    """vLLM's class, without its refusal of min_p and logit_bias on engines that speculate.

    `logits_processors` applies both there.
    """

    def _validate_spec_decode(self, speculative_config: Any) -> None:
        pass

    def update_from_tokenizer(self, tokenizer: Any) -> None:
        """As vLLM's, which checks the number of bad words. Its sampler on GPUs bounds their tokens, too."""
        super().update_from_tokenizer(tokenizer)
        tokens, most = sum(map(len, self.bad_words_token_ids or ())), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
        if tokens > most:
            raise VLLMValidationError(
                f"bad_words has {tokens} tokens, but the limit is {most}; leave some out", parameter="bad_words"
            )


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
