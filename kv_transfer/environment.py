"""Environment variables that the processes of an engine start with, and those that Skim sets for them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's environment variable for the cores of each rank on CPU: `0,1|2,3`."""

KEPT_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc's variables (mallopt(3)) with which a process keeps what it frees, as the allocator of a GPU does.

By itself glibc maps each block over 32 MiB anew and gives it back: a long prompt's activations are a page fault per
4 KiB, in every layer of every step. vLLM's own answer is a tcmalloc in its `libs` folder, which not every build has.
"""


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """More environment variables for the processes that start meanwhile."""
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
    """These environment variables, each with the value that it has already, if it has one."""
    return {name: os.environ.get(name, value) for name, value in variables.items()}
