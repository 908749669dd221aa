"""An engine's process ends when its parent is killed."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

PARENT = """
import multiprocessing, sys, time
import child

if __name__ == "__main__":
    started = multiprocessing.get_context("spawn").Process(target=child.run)
    started.start()
    time.sleep(600)
"""

CHILD = """
import os, sys, time

def run():
    if {watches}:
        from vllm_hooks.start_up import end_with_parent
        end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


STOPPED = """
import multiprocessing, os, signal, time
from vllm_hooks.start_up import end_with_parent

def stop():
    if {watches}:
        end_with_parent()
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


def orphan(folder: Path, *, watches: bool) -> psutil.Process:
    """A process whose parent was killed."""
    (folder / "parent.py").write_text(PARENT)
    (folder / "child.py").write_text(CHILD.format(watches=watches))
    with subprocess.Popen([sys.executable, folder / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        # The child holds the other end of the pipe, so its end is not awaited here.
        parent.stdout.close()
    return child


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    assert gone(orphan(tmp_path, watches=True), 30)


def test_without_the_watch_it_stays(tmp_path: Path) -> None:
    child = orphan(tmp_path, watches=False)
    try:
        assert not gone(child, 1)
    finally:
        child.kill()


def stopped_orphans(folder: Path, *, watches: bool) -> list[psutil.Process]:
    """A core and its worker, which were stopped (SIGSTOP) before the parent of the core was killed."""
    (folder / "parent.py").write_text(PARENT)
    (folder / "child.py").write_text(STOPPED.format(watches=watches))
    with subprocess.Popen([sys.executable, folder / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        found = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
        while {process.status() for process in found} != {psutil.STATUS_STOPPED}:
            time.sleep(0.01)
        parent.kill()
        parent.stdout.close()
    return found


def test_stopped_processes_end_with_their_parent(tmp_path: Path) -> None:
    assert all(gone(process, 30) for process in stopped_orphans(tmp_path, watches=True))


def test_without_the_watch_stopped_processes_stay(tmp_path: Path) -> None:
    found = stopped_orphans(tmp_path, watches=False)
    try:
        assert not any(gone(process, 1) for process in found)
    finally:
        for process in found:
            process.kill()


def test_a_process_that_nobody_spawned_is_left_alone() -> None:
    code = "from vllm_hooks.start_up import end_with_parent; end_with_parent(); print('runs')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "runs\n"
