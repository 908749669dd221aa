"""Samples drafts from exactly the `top_k` likeliest tokens, and keeps the first drafts free of compilation on CPU.

vLLM's own top-k keeps every token that ties with the k-th likeliest, which is common in bfloat16. But the q that goes
to the target has k pairs, so verification would not be exact.
"""

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import sampler as v1_sampler
from vllm.v1.sample.ops import topk_topp_sampler

from speculator_service.engine import MAX_TOP

_vllm_top_k_top_p = topk_topp_sampler.apply_top_k_top_p


def exact_top_k(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    """logits [rows, vocabulary] with -inf for all but the k[row] likeliest tokens. k: int [rows], at most MAX_TOP, or
    the vocabulary size for all. p: None for drafts; only vLLM's warm-up uses top-p."""
    if k is None or p is not None:
        return _vllm_top_k_top_p(logits, k, p)
    # The width is fixed, because reading the largest k would wait for the GPU.
    values, ids = logits.topk(min(MAX_TOP, logits.shape[1]))
    values = values.masked_fill(torch.arange(values.shape[1], device=k.device) >= k[:, None], -torch.inf)
    kept = torch.full_like(logits, -torch.inf).scatter_(1, ids, values)
    return torch.where((k >= logits.shape[1])[:, None], logits, kept)


def random_sample(logits: torch.Tensor) -> torch.Tensor:
    """A token [rows] drawn from each row of logits [rows, vocabulary]."""
    return logits.softmax(-1, dtype=torch.float32).multinomial(1).squeeze(1)


def count_at_least(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """How many entries of each row [rows, vocabulary] are at least its value [rows, 1]. The speculator ignores it."""
    return (rows >= values).sum(-1)


def sample_exactly(v2_model_runner: bool) -> None:
    """Put `exact_top_k` in place of vLLM's `apply_top_k_top_p` in this process, a worker of a speculator."""
    topk_topp_sampler.apply_top_k_top_p = exact_top_k
    if current_platform.is_cpu():
        # vLLM compiles these two at their first call. It takes seconds, and drafts would be late meanwhile.
        topk_topp_sampler.compiled_random_sample = random_sample
        v1_sampler.batched_count_greater_than = count_at_least
    if v2_model_runner:
        from vllm.v1.worker.gpu.sample import sampler

        sampler.apply_top_k_top_p = exact_top_k
