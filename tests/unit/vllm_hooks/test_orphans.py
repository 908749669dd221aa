"""An engine's process ends when its parent is killed."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PARENT = """
import multiprocessing, sys, time
import child

if __name__ == "__main__":
    started = multiprocessing.get_context("{method}").Process(target=child.run)
    started.start()
    time.sleep(600)
"""

CHILD = """
import os, sys, time

def run():
    if {watches}:
        from vllm_hooks.orphans import end_with_parent
        end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


STOPPED = """
import multiprocessing, os, signal, time
from vllm_hooks import orphans

def stop():
    if not {by_kernel}:
        orphans._ask_kernel = lambda: None
    orphans.end_with_parent()
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)

def run():
    multiprocessing.get_context("spawn").Process(target=stop).start()
    stop()
"""


def gone(process: psutil.Process, seconds: float) -> bool:
    """Whether the process ends within this time."""
    deadline = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def orphan(folder: Path, *, watches: bool, method: str = "spawn") -> psutil.Process:
    """A process whose parent was killed."""
    (folder / "parent.py").write_text(PARENT.format(method=method))
    (folder / "child.py").write_text(CHILD.format(watches=watches))
    with subprocess.Popen([sys.executable, folder / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        # The child holds the other end of the pipe, so its end is not awaited here.
        parent.stdout.close()
    return child


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_ends_with_its_parent(tmp_path: Path, method: str) -> None:
    """The child of a fork server has the server as its parent in the sense of getppid; both live until the kill."""
    assert gone(orphan(tmp_path, watches=True, method=method), 30)


def test_without_the_watch_it_stays(tmp_path: Path) -> None:
    child = orphan(tmp_path, watches=False)
    try:
        assert not gone(child, 1)
    finally:
        child.kill()


def stopped_orphans(folder: Path, *, by_kernel: bool) -> list[psutil.Process]:
    """A core and its worker, which were stopped (SIGSTOP) before the parent of the core was killed."""
    (folder / "parent.py").write_text(PARENT.format(method="spawn"))
    (folder / "child.py").write_text(STOPPED.format(by_kernel=by_kernel))
    with subprocess.Popen([sys.executable, folder / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        found = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
        while {process.status() for process in found} != {psutil.STATUS_STOPPED}:
            time.sleep(0.01)
        parent.kill()
        parent.stdout.close()
    return found


def test_stopped_processes_end_with_their_parent(tmp_path: Path) -> None:
    assert all(gone(process, 30) for process in stopped_orphans(tmp_path, by_kernel=True))


def test_a_thread_alone_does_not_end_a_stopped_process(tmp_path: Path) -> None:
    found = stopped_orphans(tmp_path, by_kernel=False)
    try:
        assert not any(gone(process, 1) for process in found)
    finally:
        for process in found:
            process.kill()


def test_a_process_that_nobody_spawned_is_left_alone() -> None:
    code = "from vllm_hooks.orphans import end_with_parent; end_with_parent(); print('runs')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "runs\n"
