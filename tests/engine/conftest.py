"""Forks engine processes from a process that has imported vLLM: the import takes two thirds of an engine's start."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with `LONGEST = True` come first, so that no worker of pytest-xdist ends long after the others."""
    items.sort(key=lambda item: not getattr(getattr(item, "module", None), "LONGEST", False))


class _Process(ForkServerProcess):
    """A process with the environment of its parent, as if it were spawned, not that of the fork server."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


@pytest.fixture(scope="module", autouse=True)
def forked_engines(request: pytest.FixtureRequest) -> Iterator[None]:
    """vLLM's context is `spawn` on CPU. Modules whose engines start with other variables keep it: `SPAWNED = True`.

    Only in a worker of pytest-xdist: there all engines have one core, and OpenMP reads its variables at the import.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or getattr(request.module, "SPAWNED", False):
        yield
        return
    multiprocessing.set_forkserver_preload(["tests.engine.preload"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.v1.engine.utils.get_mp_context", _Context)
        yield
