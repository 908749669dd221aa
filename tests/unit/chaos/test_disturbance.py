"""The files and the disk of the soak run: what processes see of them while they run."""

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

from tests.chaos.support.disturbance import Disturbance, can_disturb, small_disk

needs_compiler = pytest.mark.skipif(not can_disturb(), reason="no C compiler")

NOBODYS = 1
"""A port on which nobody listens."""

CHILD = """
import socket, sys

def answer():
    return "answered"

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
def test_files_are_slow_and_pipes_are_not(tmp_path) -> None:
    disturbance = Disturbance(tmp_path)
    with child(tmp_path, disturbance.variables) as process:
        assert ask(process, "write") == "written"
        disturbance.tell(write_ms=3600 * 1000)
        assert ask(process, "answer") == "answered", "the pipe to this test"
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
