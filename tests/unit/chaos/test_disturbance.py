"""The clock, the files and the disk of the soak run: what processes see of them while they run."""

import errno
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.disturbance import JUMP_S, Disturbance, can_disturb, small_disk

needs_compiler = pytest.mark.skipif(not can_disturb(), reason="no C compiler")

NOBODYS = 1
"""A port on which nobody listens."""

CHILD = """
import ctypes, os, socket, sys, time

class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

REALTIME_COARSE = 5
libc, semaphore = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)

def clocks():
    now = time.monotonic()
    return f"{time.time() - now} {time.clock_gettime(REALTIME_COARSE) - now}"

def wait():
    libc.sem_timedwait(semaphore, ctypes.byref(Timespec(int(time.time()) + 1, 0)))
    return os.strerror(ctypes.get_errno())

def write():
    with open(sys.argv[1], "w") as file:
        file.write("written")
    return "written"

def connect():
    port = int(sys.argv[2])
    pairs = [(socket.AF_INET, "127.0.0.9"), (socket.AF_INET6, "::ffff:127.0.0.9")]
    for family, host in pairs:
        with socket.socket(family) as client:
            client.connect((host, port))
    return f"connected {len(pairs)}"

for line in sys.stdin:
    print(globals()[line.strip()](), flush=True)
"""


@contextmanager
def child(tmp_path, variables) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", CHILD, tmp_path / "file", str(NOBODYS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **variables}, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen, line: str) -> None:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def ask(process: subprocess.Popen, line: str) -> str:
    tell(process, line)
    return process.stdout.readline().strip()


@needs_compiler
def test_the_wall_clock_jumps_while_a_process_runs(tmp_path) -> None:
    disturbance = Disturbance(tmp_path)

    def moved() -> list[int]:
        """Hours of each clock since the first answer."""
        return [round((float(offset) - at_first) / JUMP_S) for offset in ask(process, "clocks").split()]

    with child(tmp_path, disturbance.variables) as process:
        at_first = float(ask(process, "clocks").split()[0])
        for hours in (0, 1, -1, 0):
            disturbance.tell(clock_s=hours * JUMP_S)
            assert moved() == [hours] * 2


@needs_compiler
def test_a_wait_until_a_time_of_day_ends_though_the_clock_is_ahead(tmp_path) -> None:
    disturbance = Disturbance(tmp_path)
    with child(tmp_path, disturbance.variables) as process:
        disturbance.tell(clock_s=JUMP_S)
        assert ask(process, "wait") == os.strerror(errno.ETIMEDOUT)


@needs_compiler
def test_files_are_slow_and_pipes_are_not(tmp_path) -> None:
    disturbance = Disturbance(tmp_path)
    with child(tmp_path, disturbance.variables) as process:
        assert ask(process, "write") == "written"
        disturbance.tell(write_ms=3600 * 1000)
        assert ask(process, "clocks"), "the pipe to this test"
        tell(process, "write")
        assert select.select([process.stdout], [], [], 0.5)[0] == [], "the file was written at once"


@needs_compiler
def test_connections_to_a_port_go_elsewhere(tmp_path) -> None:
    disturbance = Disturbance(tmp_path)
    with child(tmp_path, disturbance.variables) as process, socket.create_server(("127.0.0.1", 0)) as server:
        disturbance.lead(NOBODYS, server.getsockname()[1])
        assert ask(process, "connect") == "connected 2"


def test_nothing_can_be_written_while_the_disk_is_full() -> None:
    with small_disk() as disk:
        if disk is None:
            pytest.skip("no right to mount a disk")
        full, enough = threading.Event(), threading.Event()
        filling = threading.Thread(target=disk.fill, args=(lambda: full.set() or enough.is_set(),))
        filling.start()
        full.wait()
        try:
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                (disk.folder / "log").write_text("a line")
        finally:
            enough.set()
            filling.join()
        (disk.folder / "log").write_text("a line")
