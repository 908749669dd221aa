"""Runs `check` for many architectures, each in a process of its own with a limit of time."""

import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from evals.architectures.found import Found, Role
from evals.architectures.registry import Recipe

LIMIT_S = 300

ENVIRONMENT = {
    # Tiny models gain nothing from threads, and a process with threads of OpenMP cannot be forked.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
"""Set before torch is imported."""


def sweep(recipes: Sequence[Recipe]) -> Iterator[Found]:
    """The result of each recipe, as soon as it is known."""
    import evals.architectures.check  # noqa: F401  # once, for all processes

    context = get_context("fork")
    for recipe in recipes:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_in_own_process, args=(recipe, theirs))
        process.start()
        assert process.pid is not None
        os.setpgid(process.pid, process.pid)
        theirs.close()
        try:
            found = ours.recv() if ours.poll(LIMIT_S) else _ended(recipe, f"it ran longer than {LIMIT_S} s")
        except EOFError:
            process.join()
            found = _ended(recipe, f"its process ended with code {process.exitcode}")
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its engines too, which may hang
        process.join()
        yield found


def _in_own_process(recipe: Recipe, result: Connection) -> None:
    from evals.architectures.check import check
    from evals.architectures.forked import fork_engines

    fork_engines()
    with tempfile.TemporaryDirectory(prefix="skim-check-") as folder:
        found = check(recipe, Path(folder))
    result.send(found)
    signal.pause()  # the sweep ends this group


def _ended(recipe: Recipe, why: str) -> Found:
    role = Role("does not build here", why)
    return Found(recipe.architecture, recipe.model_type, recipe.dtype, role, role)
