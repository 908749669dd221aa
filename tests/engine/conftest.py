"""Forks engine processes from a process that has imported vLLM: the import takes two thirds of an engine's start."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with `LONGEST = True` come first, so that no worker of pytest-xdist ends long after the others.

    The tests of a module, or of modules that share an engine and name a group themselves, run on one worker.
    """
    items.sort(key=lambda item: not getattr(getattr(item, "module", None), "LONGEST", False))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


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


@pytest.fixture(scope="session", autouse=True)
def forked_engines() -> Iterator[dict[str, bool]]:
    """vLLM's context is `spawn` on CPU. Here engines are forked, unless `spawned` says otherwise.

    Only in a worker of pytest-xdist: there all engines have one core, and OpenMP reads its variables at the import.
    """
    forked = {"on": "PYTEST_XDIST_WORKER" in os.environ}
    if not forked["on"]:
        yield forked
        return
    from vllm.v1.engine import utils

    spawn = utils.get_mp_context
    multiprocessing.set_forkserver_preload(["tests.engine.preload"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "get_mp_context", lambda: _Context() if forked["on"] else spawn())
        yield forked


@pytest.fixture(scope="module", autouse=True)
def spawned(request: pytest.FixtureRequest, forked_engines: dict[str, bool]) -> Iterator[None]:
    """A module whose engines start with other variables says `SPAWNED = True`: its engines are spawned."""
    before = forked_engines["on"]
    forked_engines["on"] = before and not getattr(request.module, "SPAWNED", False)
    yield
    forked_engines["on"] = before
