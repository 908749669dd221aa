"""The faults of vLLM on CPU, and their repair, on the functions themselves: no engine."""

from types import ModuleType

import pytest
import torch

from target_service import vllm_cpu_sampling
from target_service.vllm_cpu_sampling import expands_rightly, repair_expand_kernel


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vLLM's module as a CPU runner leaves it."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    if not current_platform.is_cpu():
        pytest.skip("the faults are those of vLLM's CPU build")
    current_platform.import_kernels()
    monkeypatch.setattr(rejection_sampler, "expand_kernel", cpu_triton_utils.expand_kernel)
    return rejection_sampler


CASES = [
    (torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 5, 6], dtype=torch.int32), 0, 1, [0.7, 0.7, 1.0, 1.0, 1.0, 1.3]),
    (torch.tensor([5, 9]), torch.tensor([0, 2], dtype=torch.int32), 0, 0, [9, 9]),
]


@pytest.mark.parametrize(("values", "counts", "replaced", "by", "expected"), CASES)
def test_expansion_after_the_repair(
    sampler: ModuleType, values: torch.Tensor, counts: torch.Tensor, replaced: int, by: int, expected: list
) -> None:
    repair_expand_kernel(sampler)
    found = sampler.expand_batch_to_tokens(values, counts, len(expected), replaced, by)
    assert torch.equal(found, torch.tensor(expected, dtype=values.dtype))


def test_the_repair_is_made_where_there_is_need_alone(sampler: ModuleType) -> None:
    was_right = expands_rightly(sampler.expand_kernel)
    assert repair_expand_kernel(sampler) is not was_right
    assert expands_rightly(sampler.expand_kernel)
    assert repair_expand_kernel(sampler) is False


def test_a_kernel_that_writes_elsewhere_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.29.0's own fault, written out: it writes into a converted copy."""
    expand = vllm_cpu_sampling._expand

    class WritesElsewhere:
        def __getitem__(self, grid: object) -> object:
            return lambda output, *args, **kwargs: expand(output.to(torch.int64), *args, **kwargs)

    assert not expands_rightly(WritesElsewhere())
