"""Forks engine processes from a process that has imported vLLM: the import takes two thirds of an engine's start."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARING = {
    "tests/engine/speculator_service/vllm_backend": (
        "test_heads.py",
        "test_question_rows.py",
        "test_reads_in_windows.py",
        "test_scores.py",
        "test_sessions.py",
    ),
    "tests/engine/target_service/vllm_backend": ("test_continued_answers.py", "test_engine.py"),
}
"""Modules that share an engine, by folder: one worker of pytest-xdist runs them, in this order."""


class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
    """pytest-xdist gives a worker all tests of a module, or of the modules that share an engine.

    Its own `--dist loadgroup` does nothing with pytest 9.2, which has no `Node._nodeid` to write a group's name to.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder, _, module = nodeid.partition("::")[0].rpartition("/")
        return folder if module in SHARING.get(folder, ()) else f"{folder}/{module}"


@pytest.hookimpl(optionalhook=True)  # it is called with -n only
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    return ByEngine(config, log)


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
