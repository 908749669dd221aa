"""Repairs four faults of vLLM 0.29 on CPU. Each fault is detected by a test, not by vLLM's version.

Temperature, top-k and top-p of drafted requests are uninitialised memory. `expand_kernel` of
vllm.utils.cpu_triton_utils converts its arguments to int64 and writes into the copy. So `expand_batch_to_tokens`
(vllm.v1.sample.rejection_sampler) returns the result of `new_empty` unchanged.

A padding draft can be accepted in sampled requests. vLLM pads a request that joins a decode step with -1.
`rejection_random_sample_kernel` looks up the probability of token -1, which is the last token of the previous row.
vLLM's Triton kernel of the same name rejects it at once.

A request with a seed stops the engine if its prompt is prefilled in chunks. GPUModelRunner._bookkeeping_sync rewinds
its generator with `set_offset`, which CPU generators do not have.

A later pipeline stage stops at its first step without compilation. GPUModelRunner makes its buffer for the output of
the stage before only in `_dummy_run`, which the CPU runner then skips.
"""

from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group


class ExpandKernel:
    """Called like a Triton kernel, `kernel[grid](...)`. The grid is ignored."""

    def __getitem__(self, grid: Any) -> Any:
        return _expand


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


def expands_rightly(kernel: Any) -> bool:
    """Whether this `expand_kernel` writes floats into its output."""
    output = torch.full((3,), -1.0)
    kernel[(2,)](output, torch.tensor([0.0, 0.7]), torch.tensor([1, 3], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=128)
    return torch.equal(output, torch.tensor([1.0, 0.7, 0.7]))


def repair_expand_kernel(sampler: Any) -> bool:
    """Replace the kernel of `sampler`, the module vllm.v1.sample.rejection_sampler, if it is wrong.

    Call it after a CPU model runner was created, because that sets the kernel. Returns whether it was replaced.
    """
    if expands_rightly(sampler.expand_kernel):
        return False
    sampler.expand_kernel = ExpandKernel()
    return True


class RejectionKernel:
    """vLLM's CPU kernel for sampled requests, called like a Triton kernel, but it rejects padding drafts."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        kernel = self._kernel[grid]

        def verify(
            output: torch.Tensor,
            cumulative_counts: torch.Tensor,
            drafts: torch.Tensor,
            q: torch.Tensor | None,
            p: torch.Tensor,
            bonus: torch.Tensor,
            recovered: torch.Tensor,
            uniform: torch.Tensor,
            *others: Any,
            **options: Any,
        ) -> None:
            # The token must be valid for the look-up. No ratio p / q reaches the threshold.
            threshold = uniform.masked_fill(drafts < 0, torch.inf)
            kernel(
                output, cumulative_counts, drafts.clamp(min=0), q, p, bonus, recovered, threshold, *others, **options
            )

        return verify


def rejects_padding(kernel: Any) -> bool:
    """Whether this `rejection_random_sample_kernel` replaces a padding draft by the recovered token."""
    output = torch.full((2, 2), -1, dtype=torch.int32)
    p = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    kernel[(2,)](
        output,
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([2, -1], dtype=torch.int32),
        None,
        p,
        torch.tensor([[0], [0]], dtype=torch.int32),
        torch.tensor([1, 1], dtype=torch.int32),
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([False, False]),
        1,
        3,
        None,
        NO_DRAFT_PROBS=True,
        SYNTHETIC_MODE=False,
    )
    return output.tolist() == [[2, 0], [1, -1]]


def repair_rejection_kernel(sampler: Any) -> bool:
    """Make the kernel of `sampler`, the module vllm.v1.sample.rejection_sampler, reject padding if it does not.

    Call it when `repair_expand_kernel` is called. Returns whether it was replaced.
    """
    if rejects_padding(sampler.rejection_random_sample_kernel):
        return False
    sampler.rejection_random_sample_kernel = RejectionKernel(sampler.rejection_random_sample_kernel)
    return True


def repair_rewinding(runner: Any) -> bool:
    """Make the V1 `runner` rewind the generators of prefilling requests in a way that works on CPU.

    Returns whether the runner was changed.
    """
    try:
        torch.Generator().get_offset()
    except RuntimeError:
        runner._sample = _rewinding(runner, runner._sample)
        runner._bookkeeping_sync = _without_rewinding(runner, runner._bookkeeping_sync)
        return True
    return False


def _prefilling(runner: Any) -> dict[int, torch.Generator]:
    """The generators of the rows whose samples are discarded."""
    batch = runner.input_batch
    rows = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    return {row: batch.generators[row] for row in rows if row in batch.generators}


def _rewinding(runner: Any, sample: Any) -> Any:
    def sample_and_rewind(*args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _prefilling(runner).values()]
        output = sample(*args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    return sample_and_rewind


def _without_rewinding(runner: Any, bookkeeping: Any) -> Any:
    def bookkeeping_sync(*args: Any, **kwargs: Any) -> Any:
        rewound = _prefilling(runner)
        for row in rewound:
            del runner.input_batch.generators[row]
        try:
            return bookkeeping(*args, **kwargs)
        finally:
            runner.input_batch.generators.update(rewound)

    return bookkeeping_sync


def repair_stages(runner: Any) -> bool:
    """Make the buffer of a later stage, whose model is loaded. Returns whether it was missing."""
    if get_pp_group().is_first_rank or runner.intermediate_tensors is not None:
        return False
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )
    return True
