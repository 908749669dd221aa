"""The processes below a replica: what a hanging engine was doing, and its end."""

import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

from vllm_hooks.start_up import STACKS_SIGNAL

STACKS_S = 1.0
"""Time in which the processes write their stacks."""


def states(replica: psutil.Process) -> str:
    """Name, process id and state (`stopped`, `running`, ...) of each process below, for a log line."""
    found = []
    for process in _below(replica):
        with suppress(psutil.Error):
            found.append(f"{(process.cmdline() or [process.name()])[0]:.40} {process.pid} ({process.status()})")
    return ", ".join(found) or "none"


def ask_for_stacks(replica: psutil.Process) -> None:
    """Let each process below write the stacks of its threads to its log. Takes STACKS_S.

    A stopped process writes nothing. A process that has not called `show_stacks_when_asked` ends, so this is only for
    an engine that is about to be killed.
    """
    for process in _below(replica):
        with suppress(psutil.Error):
            process.send_signal(STACKS_SIGNAL)
    time.sleep(STACKS_S)


def kill_below(replica: psutil.Process) -> None:
    """SIGKILL to all processes that `replica` and its children have started.

    They would end with `replica` (vllm_hooks.start_up). This does not wait for its end.
    """
    for process in _below(replica):
        with suppress(psutil.Error):
            process.kill()


def _below(replica: psutil.Process) -> Iterator[psutil.Process]:
    for child in replica.children(recursive=True):
        with suppress(psutil.Error):
            # It removes the shared memory that the others leave behind, and then ends.
            if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                yield child
