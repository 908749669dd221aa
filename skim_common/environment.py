"""Environment variables that Skim sets for the processes of an engine."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's environment variable for the CPU cores of each rank, for example `0,1|2,3`."""

KEPT_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc variables (mallopt(3)) that make a process keep freed memory. By default each block over 32 MiB is mapped anew:
the activations of a long prompt then cause a page fault per 4 KiB in every layer of every step."""


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for the processes that start inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """These environment variables; a variable that is already set keeps its value."""
    return {name: os.environ.get(name, value) for name, value in variables.items()}
