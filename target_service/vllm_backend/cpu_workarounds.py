"""Repairs four faults of vLLM 0.29 on CPU, in its V1 model runner.

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

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group


class _Kernel:
    """A function that is called like a Triton kernel, `kernel[grid](...)`. The grid is ignored."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._function


def repair_kernels(sampler: Any) -> None:
    """Replace the kernels of `sampler`, the module vllm.v1.sample.rejection_sampler.

    Call it after each creation of a CPU model runner, which sets the kernels.
    """
    verify = sampler.rejection_random_sample_kernel[()]

    def reject_padding(
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
        verify(output, cumulative_counts, drafts.clamp(min=0), q, p, bonus, recovered, threshold, *others, **options)

    sampler.rejection_random_sample_kernel = _Kernel(reject_padding)
    sampler.expand_kernel = _Kernel(_expand)


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
