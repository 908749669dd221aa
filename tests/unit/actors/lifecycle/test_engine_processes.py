"""The processes below a replica: told, asked for their stacks, and killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from actors.lifecycle import watch
from actors.lifecycle.watch import ask_for_stacks, signal_below, states

TRACKER = "multiprocessing.resource_tracker"


@contextmanager
def replica(command: str) -> Iterator[psutil.Process]:
    """A process with a child that runs these words of bash; `$TRACKER` is the name of the one that stays."""
    environment = {**os.environ, "TRACKER": TRACKER}
    with subprocess.Popen(["bash", "-c", f"bash -c '{command}' & wait"], env=environment) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def test_stopped_processes_of_an_engine_end() -> None:
    """The process that removes their shared memory stays."""
    with replica('(exec -a rank sleep 60) & (exec -a "$TRACKER" sleep 60) & wait') as process:
        await_that(lambda: by_command(process).keys() == {"bash", "rank", TRACKER})
        found = by_command(process)
        found["rank"].suspend()
        found["bash"].suspend()
        signal_below(process, signal.SIGKILL)
        await_that(lambda: not runs(found["rank"]) and not runs(found["bash"]))
        assert runs(found[TRACKER])
        found[TRACKER].kill()


def test_the_log_tells_which_process_is_stopped() -> None:
    with replica('(exec -a rank sleep 60) & (exec -a "$TRACKER" sleep 60) & wait') as process:
        await_that(lambda: by_command(process).keys() == {"bash", "rank", TRACKER})
        rank = by_command(process)["rank"]
        rank.suspend()
        await_that(lambda: rank.status() == psutil.STATUS_STOPPED)
        # Bash runs for a moment when its child stops.
        await_that(lambda: "(sleeping)" in states(process))
        told = states(process)
    assert f"rank {rank.pid} (stopped)" in told
    assert TRACKER not in told


def test_a_replica_without_processes() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert states(psutil.Process(process.pid)) == "none"
        process.kill()


HANGS = """
import sys, time
from vllm_hooks.start_up import show_stacks_when_asked
def waits_for_ever():
    print("ready", flush=True)
    time.sleep(60)
show_stacks_when_asked()
waits_for_ever()
"""


def test_the_stacks_of_a_process_that_hangs_are_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STACKS_S", 0.0)
    words = [sys.executable, "-c", HANGS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        # This test is the replica, and may have other children.
        monkeypatch.setattr(watch, "_below", lambda replica: [psutil.Process(process.pid)])
        ask_for_stacks(psutil.Process())
        lines = [process.stderr.readline() for _ in range(3)]
        assert any("waits_for_ever" in line for line in lines)
        assert process.poll() is None, "the process goes on"
        process.kill()


def await_that(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def by_command(process: psutil.Process) -> dict[str, psutil.Process]:
    """The processes below, by the first word of their command; one that just starts may not have any."""
    return {(child.cmdline() or [""])[0]: child for child in process.children(recursive=True)}


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
