"""A random checkpoint, its oracle and engines for the modules here. Two modules share one engine of a plain llama."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import build_target, engine_options
from tests.reference.generation_oracle import GenerationOracle

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The module's checkpoint: of the family FAMILY, a llama by default, with the options MODEL."""
    family = getattr(request.module, "FAMILY", "llama")
    return build_target(tmp_path_factory.mktemp(family), family, **getattr(request.module, "MODEL", {}))


@pytest.fixture(scope="module")
def oracle(model: str) -> GenerationOracle:
    return GenerationOracle(model)


@pytest.fixture(scope="module")
def start(model: str, device: str, request: pytest.FixtureRequest) -> Start:
    """start(class of the target, **engine options) -> a target of `model`, which is closed after the module."""

    def started(target: type[VllmTarget] = VllmTarget, **options: Any) -> VllmTarget:
        engine = target(model, **engine_options(device, **options))
        request.addfinalizer(engine.close)
        return engine

    return started


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of `llama_engine`."""
    return build_target(tmp_path_factory.mktemp("shared"), "llama")


@pytest.fixture(scope="session")
def llama_engine(llama: str, device: str) -> Iterator[VllmTarget]:
    """Shared by test_continued_answers and, after it, test_engine, which ends it."""
    target = VllmTarget(llama, **engine_options(device))
    yield target
    target.close()
