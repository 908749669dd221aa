"""What vLLM 0.29's V1 runner lacks for a target: logit_bias and min_p with drafts, and four faults on CPU.

**logit_bias and min_p** on an engine that speculates: vLLM builds only MinTokensLogitsProcessor there
(vllm.v1.sample.logits_processor.build_logitsprocs) and refuses the two parameters. `apply_logits_processors` of the
RejectionSampler, which verifies drafts, is wrapped, so that it has the target distribution of the plain Sampler.

**On CPU**, temperature, top-k and top-p of drafted requests are uninitialised memory: `expand_kernel` of
vllm.utils.cpu_triton_utils converts its arguments to int64 and writes into the copy.

A padding draft can be accepted in sampled requests. vLLM pads a request that joins a decode step with -1, which
`rejection_random_sample_kernel` takes for the last token of the previous row; the Triton kernel rejects it.

A request with a seed stops the engine if its prompt is prefilled in chunks. GPUModelRunner._bookkeeping_sync rewinds
its generator with `set_offset`, which CPU generators do not have.

A later pipeline stage stops at its first step without compilation: the CPU runner then skips `_dummy_run`, where its
buffer for the output of the stage before is made.
"""

from typing import Any

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_pp_group
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor


class TargetSamplingParams(SamplingParams):
    """vLLM's class, without its refusal of min_p and logit_bias on engines that speculate."""

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
    """Exclude the tokens with less than min_p times the probability of the likeliest token: p / p_max < min_p is the
    same as logit < logit_max + T * log(min_p). logits: [drafts, vocabulary]. min_p: [requests, 1], 0 for greedy
    requests."""
    counts = torch.tensor(draft_counts, device=logits.device)
    margin = torch.where(min_p[:, 0] > 0, temperature * min_p[:, 0].log(), -torch.inf).repeat_interleave(counts)
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + margin[:, None], -torch.inf)


def repair_kernels(sampler: Any) -> None:
    """sampler: the module vllm.v1.sample.rejection_sampler. Each creation of a CPU model runner sets its kernels."""
    from vllm.utils.cpu_triton_utils import _FuncWrapper

    verify = sampler.rejection_random_sample_kernel[()]

    def reject_padding(*args: Any, **options: Any) -> None:
        """args: output, cumulative counts, drafts, q, p, bonus, recovered, uniform, and others."""
        drafts, uniform = args[2], args[7]
        # The token must be valid for the look-up. No ratio p / q reaches the threshold.
        threshold = uniform.masked_fill(drafts < 0, torch.inf)
        verify(*args[:2], drafts.clamp(min=0), *args[3:7], threshold, *args[8:], **options)

    sampler.rejection_random_sample_kernel = _FuncWrapper(reject_padding)
    sampler.expand_kernel = _FuncWrapper(_expand)


def _expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative_counts: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,  # noqa: N803  the Triton kernel's name
) -> None:
    """Write each of `values` [rows] into `output` [tokens], once per token of its row. Replaces `replace_from`."""
    counts = torch.diff(cumulative_counts.long(), prepend=cumulative_counts.new_zeros(1, dtype=torch.long))
    output.copy_(values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts))


def repair_rewinding(runner: Any) -> None:
    """Make the V1 `runner` rewind the generators of prefilling requests by their state; their samples are discarded."""
    sample, bookkeeping_sync = runner._sample, runner._bookkeeping_sync

    def prefilling() -> dict[int, torch.Generator]:
        batch = runner.input_batch
        rows = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        return {row: batch.generators[row] for row in rows if row in batch.generators}

    def sample_and_rewind(*args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in prefilling().values()]
        output = sample(*args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def sync_without_rewinding(*args: Any, **kwargs: Any) -> Any:
        rewound = prefilling()
        for row in rewound:
            del runner.input_batch.generators[row]
        try:
            return bookkeeping_sync(*args, **kwargs)
        finally:
            runner.input_batch.generators.update(rewound)

    runner._sample, runner._bookkeeping_sync = sample_and_rewind, sync_without_rewinding


def repair_stages(runner: Any) -> None:
    """Make the buffer of a later stage, whose model is loaded, if it is missing."""
    if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )
