"""logit_bias and min_p on the V1 runner of an engine that speculates, with drafts and without.

vLLM 0.29 builds only MinTokensLogitsProcessor there (vllm.v1.sample.logits_processor.build_logitsprocs) and refuses the
two parameters. Tokens are sampled in two places. The plain Sampler applies every processor: it samples requests without
drafts, and the token after the drafts. The RejectionSampler, which verifies drafts, knows MinTokensLogitsProcessor
alone; here its `apply_logits_processors` is wrapped. Both then see the same target distribution, so that verification
stays exact. The V2 runner has both parameters in its own sampler.
"""

from typing import Any

import torch
from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor


class TargetSamplingParams(SamplingParams):
    """vLLM's class, without its refusal of min_p and logit_bias on engines that speculate.

    `apply_to_drafts` applies both there.
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


def apply_to_drafts(runner: Any) -> None:
    """Give the V1 `runner` all of vLLM's own logits processors, and its rejection sampler those that it lacks."""
    pin_memory = is_pin_memory_available()
    processors = [kind(runner.vllm_config, runner.device, pin_memory) for kind in BUILTIN_LOGITS_PROCESSORS]
    runner.input_batch.logitsprocs = LogitsProcessors(processors)
    [bias] = [processor for processor in processors if isinstance(processor, LogitBiasLogitsProcessor)]
    [min_p] = [processor for processor in processors if isinstance(processor, MinPLogitsProcessor)]
    apply = runner.rejection_sampler.apply_logits_processors

    def apply_logits_processors(logits: torch.Tensor, sampling_metadata: Any, metadata: Any) -> torch.Tensor:
        # The plain Sampler adds the bias before the penalties, and cuts by min_p after the temperature.
        _add_bias(logits, bias.biases, metadata.num_draft_tokens)
        logits = apply(logits, sampling_metadata, metadata)
        if min_p.min_p_count and sampling_metadata.temperature is not None:
            _cut_by_min_p(logits, min_p.min_p, sampling_metadata.temperature, metadata.num_draft_tokens)
        return logits

    runner.rejection_sampler.apply_logits_processors = apply_logits_processors


def _add_bias(logits: torch.Tensor, biases: dict[int, dict[int, float]], draft_counts: list[int]) -> None:
    """Add each request's biases to the rows of its drafts. logits: [drafts of all requests, vocabulary]."""
    for request, by_token in biases.items():
        start, count = sum(draft_counts[:request]), draft_counts[request]
        ids = torch.tensor(list(by_token), device=logits.device)
        logits[start : start + count, ids] += torch.tensor(list(by_token.values()), device=logits.device)


def _cut_by_min_p(
    logits: torch.Tensor, min_p: torch.Tensor, temperature: torch.Tensor, draft_counts: list[int]
) -> None:
    """Exclude the tokens with less than min_p times the probability of the likeliest token, at the temperature.

    logits: [drafts, vocabulary], before the temperature. min_p: [requests, 1]. temperature: [requests], 0 for greedy
    requests, for which vLLM sets min_p to 0. p / p_max < min_p is the same as logit < logit_max + T * log(min_p).
    """
    counts = torch.tensor(draft_counts, device=logits.device)
    margin = torch.where(min_p[:, 0] > 0, temperature * min_p[:, 0].log(), -torch.inf).repeat_interleave(counts)
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + margin[:, None], -torch.inf)
