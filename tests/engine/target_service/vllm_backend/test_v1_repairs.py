"""The faults of vLLM on CPU and their repairs, tested on the functions without an engine."""

from types import ModuleType, SimpleNamespace

import pytest
import torch

from target_service.vllm_backend.v1_repairs import repair_kernels


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vLLM's sampler module in the state that a CPU runner leaves it in."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    if not current_platform.is_cpu():
        pytest.skip("the faults are those of vLLM's CPU build")
    current_platform.import_kernels()
    for name in (
        "expand_kernel",
        "rejection_greedy_sample_kernel",
        "rejection_random_sample_kernel",
        "sample_recovered_tokens_kernel",
    ):
        monkeypatch.setattr(rejection_sampler, name, getattr(cpu_triton_utils, name))
    return rejection_sampler


CASES = [
    (torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 5, 6], dtype=torch.int32), 0, 1, [0.7, 0.7, 1.0, 1.0, 1.0, 1.3]),
    (torch.tensor([5, 9]), torch.tensor([0, 2], dtype=torch.int32), 0, 0, [9, 9]),
]


@pytest.mark.parametrize(("values", "counts", "replaced", "by", "expected"), CASES)
def test_expansion_after_the_repair(
    sampler: ModuleType, values: torch.Tensor, counts: torch.Tensor, replaced: int, by: int, expected: list
) -> None:
    repair_kernels(sampler)
    found = sampler.expand_batch_to_tokens(values, counts, len(expected), replaced, by)
    assert torch.equal(found, torch.tensor(expected, dtype=values.dtype))


def test_without_the_repair_nothing_is_expanded(sampler: ModuleType) -> None:
    """Negative control. If it fails, a newer vLLM no longer needs the repair."""
    output = torch.full((3,), -1.0)
    arguments = torch.tensor([0.0, 0.7]), torch.tensor([1, 3], dtype=torch.int32), 0, 1
    sampler.expand_kernel[(2,)](output, *arguments, MAX_NUM_TOKENS=128)
    assert output.tolist() == [-1.0, -1.0, -1.0]


VOCABULARY = 4
DRAFTS = [3, -1, 2, -1, -1]
"""Of three requests with 1, 2 and 2 drafts; the first token of each row that is none is rejected, with all after it."""


def verified(sampler: ModuleType, *, with_q: bool) -> torch.Tensor:
    """vLLM's verification of DRAFTS. p is one-hot at 3, 1, 1, 0, 2, the bonus is 0, and q is one-hot at each draft."""
    drafts = torch.tensor(DRAFTS, dtype=torch.int32)
    logits = torch.full((len(DRAFTS), VOCABULARY), -torch.inf)
    logits[range(len(DRAFTS)), [3, 1, 1, 0, 2]] = 0.0
    q = torch.zeros(len(DRAFTS), VOCABULARY)
    q.scatter_(1, drafts.long().clamp(min=0)[:, None], (drafts >= 0).float()[:, None])
    return sampler.rejection_sample(
        drafts,
        [1, 2, 2],
        2,
        torch.tensor([1, 3, 5], dtype=torch.int32),
        q if with_q else None,
        logits,
        torch.zeros(3, 1, dtype=torch.int32),
        SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(3), generators={}),
    )


@pytest.mark.parametrize("with_q", [False, True])
def test_drafts_that_are_none_are_rejected_and_replaced_from_p(sampler: ModuleType, with_q: bool) -> None:
    repair_kernels(sampler)
    assert verified(sampler, with_q=with_q).tolist() == [[3, 0, -1], [1, -1, -1], [0, -1, -1]]


def test_without_the_repair_a_draft_that_is_none_is_accepted(sampler: ModuleType) -> None:
    """Negative control. If it fails, a newer vLLM no longer needs the repair."""
    assert verified(sampler, with_q=False).tolist()[1] == [-1, 1, -1]
