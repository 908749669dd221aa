"""Repairs a fault of vLLM 0.29 on CPU: temperature, top-k and top-p of drafted requests were uninitialised memory.

`expand_kernel` of vllm.utils.cpu_triton_utils converts its arguments to int64 and writes into the copy, so
`expand_batch_to_tokens` (vllm.v1.sample.rejection_sampler) returns what `new_empty` held. Whether a vLLM has the fault
is tried, not read from its version.
"""

from typing import Any

import torch


class ExpandKernel:
    """Called as Triton kernels are, `kernel[grid](...)`; the grid does not matter here."""

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
    """Write each of `values` [rows] into `output` [tokens] as often as its row has tokens, replaced where equal."""
    counts = torch.diff(cumulative_counts.long(), prepend=cumulative_counts.new_zeros(1, dtype=torch.long))
    output.copy_(values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts))


def expands_rightly(kernel: Any) -> bool:
    """Whether this `expand_kernel` writes floats to where it was told."""
    output = torch.full((3,), -1.0)
    kernel[(2,)](output, torch.tensor([0.0, 0.7]), torch.tensor([1, 3], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=128)
    return torch.equal(output, torch.tensor([1.0, 0.7, 0.7]))


def repair_expand_kernel(sampler: Any) -> bool:
    """Give `sampler`, the module vllm.v1.sample.rejection_sampler, a right kernel if its own is wrong on CPU.

    Call it after a CPU model runner was made, which puts the kernel there. Returns whether there was need.
    """
    if expands_rightly(sampler.expand_kernel):
        return False
    sampler.expand_kernel = ExpandKernel()
    return True
