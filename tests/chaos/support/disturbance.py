"""A `skim serve` whose files are slow, and whose disk is full, while it runs.

Files, and connections that go through a switch of ours: a library in C (`disturb.c`) that its processes load first. It
needs a compiler, `cc`. Disk: a small one in memory that holds all
files of Ray: sessions, logs and spilled objects. It needs the right to mount.
"""

import mmap
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).with_name("disturb.c")
LAYOUT = struct.Struct("3q")
"""`struct disturbance` of the library."""

DISK_MIB = 256
WRITE_MS = 100
"""A slow disk takes so long for each write."""


def can_disturb() -> bool:
    """Whether this machine can compile the library."""
    return shutil.which("cc") is not None


class Disturbance:
    """The library and the file that it reads. variables: for the environment of the processes to disturb."""

    def __init__(self, folder: Path) -> None:
        """folder: one for the library and its file. Raises CalledProcessError if `cc` fails."""
        library, told = folder / "disturb.so", folder / "disturbance"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        told.write_bytes(bytes(LAYOUT.size))
        with told.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), LAYOUT.size)
        self._way = 0, 0
        self.variables = {
            "LD_PRELOAD": str(library),
            "SKIM_DISTURB": str(told),
            "RAY_LD_PRELOAD_ON_WORKERS": "1",  # otherwise Ray's raylet takes it from its workers
        }

    def tell(self, *, write_ms: int = 0) -> None:
        """From now on. write_ms: the time of each write to a file."""
        LAYOUT.pack_into(self._told, 0, write_ms, *self._way)

    def lead(self, port: int, instead: int) -> None:
        """From now on, connections to `port` of any machine go to the port `instead` of this one."""
        self._way = port, instead
        self.tell()

    def slow_files(self, seconds: float) -> None:
        """All files are slow for so long."""
        self.tell(write_ms=WRITE_MS)
        time.sleep(seconds)
        self.tell()


class Disk:
    """A disk of `DISK_MIB` that can be filled. folder: where it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filling = folder / "filling"

    def fill(self, is_over: Callable[[], bool]) -> None:
        """Nothing can be written until `is_over`, however much is deleted meanwhile."""
        with self._filling.open("wb", buffering=0) as file:
            _fill(file.write)
            while not is_over():
                time.sleep(0.05)
                _fill(file.write)
        self._filling.unlink()

    def full(self, seconds: float, act: Callable[[], None] = lambda: None) -> None:
        """Nothing can be written for so long, after `act` began."""
        is_full, ends = threading.Event(), time.monotonic() + seconds
        with ThreadPoolExecutor(1) as pool:
            filling = pool.submit(self.fill, lambda: is_full.set() or time.monotonic() > ends)
            is_full.wait()
            act()
            filling.result()


def _fill(write: Callable[[bytes], int | None]) -> None:
    for size in (1 << 20, 1 << 12, 1):
        with suppress(OSError):
            while write(bytes(size)):
                pass


@contextmanager
def small_disk() -> Iterator[Disk | None]:
    """A disk while the context lasts; None without the right to mount one. Its path is short, as Ray's sockets need."""
    folder = Path(mkdtemp(prefix="skim-", dir="/tmp"))
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            yield None
            return
        try:
            yield Disk(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        folder.rmdir()


def variables(disturbance: Disturbance | None, disk: Disk | None) -> dict[str, str]:
    """The environment of a `skim serve` that can be disturbed."""
    found = disturbance.variables if disturbance else {}
    return {**found, "RAY_TMPDIR": str(disk.folder)} if disk else found
