"""The parts of a `skim serve` as processes: finds them, kills them, and keeps them from starting."""

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ray import serve

from cluster.serve.app import APP_NAME
from tests.e2e.conftest import Served

BACK_S = 300
"""So long a part may take to come back."""


class Killed:
    """A `skim serve` and its parts as processes. stopped: those that were stopped."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.stopped: list[psutil.Process] = []

    def find(self, part: str) -> list[psutil.Process]:
        """The processes of a part: a word of their command line. Replicas: `replica:NAME`."""
        word = part.replace("replica:", "ServeReplica:skim:")
        found = []
        for process in psutil.Process(self.served.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def one_of(self, pool: str, rng: random.Random) -> psutil.Process:
        """One of the pool's replicas."""
        return rng.choice(sorted(self.find(f"replica:{pool}"), key=lambda process: process.pid))

    def below(self, part: str, word: str) -> list[psutil.Process]:
        """The processes of engines: those below the replicas of a part that have the word in command line or name."""
        found = []
        for replica in self.find(part):
            with suppress(psutil.NoSuchProcess):
                below = replica.children(recursive=True)
                found += [p for p in below if word in " ".join(p.cmdline()) or word in p.name()]
        return found

    def kill(self, part: str) -> None:
        processes = self.find(part)
        assert processes, f"no process of {part}"
        for process in processes:
            process.kill()

    def kill_below(self, part: str, word: str) -> None:
        """Kill one process of an engine."""
        self._one_below(part, word).kill()

    def stop_below(self, part: str, word: str) -> None:
        """Stop one process of an engine (SIGSTOP). It does not go on by itself."""
        process = self._one_below(part, word)
        process.suspend()
        self.stopped.append(process)

    def at_limit(self, processes: Sequence[psutil.Process], seconds: float = 5.0) -> None:
        """The processes get no more memory for so long, as at a limit by ulimit."""
        assert processes
        for process in processes:
            _limit_memory(process, process.memory_info().vms)
        time.sleep(seconds)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                _limit_memory(process, psutil.RLIM_INFINITY)

    def stopped_left(self) -> int:
        """The number of stopped processes that still hold their memory."""
        left = 0
        for process in self.stopped:
            with suppress(psutil.NoSuchProcess):
                left += process.status() != psutil.STATUS_ZOMBIE
        return left

    def _one_below(self, part: str, word: str) -> psutil.Process:
        processes = self.below(part, word)
        assert processes, f"no process {word} below {part}"
        return processes[0]

    def kill_next(self, part: str) -> None:
        """Kill the successor while it starts."""
        before = {process.pid for process in self.find(part)}
        self.kill(part)
        deadline = time.monotonic() + BACK_S
        while not (new := [p for p in self.find(part) if p.pid not in before]):
            assert time.monotonic() < deadline, f"no successor of {part}"
            time.sleep(0.05)
        for process in new:
            process.kill()

    def without_model(self, pool: str, act: Callable[[], None]) -> None:
        """`act`, and the next start fails, because the model's folder is away."""
        away = (self.folder / pool).rename(self.folder / "away")
        act()
        self.await_message(pool, "does not exist")
        away.rename(self.folder / pool)

    def with_hanging_start(self, pool: str) -> None:
        """Kill the pool; its successor reads a file that never ends. The next one after it can read it."""
        config = self.folder / pool / "config.json"
        text = config.read_bytes()
        config.unlink()
        os.mkfifo(config)
        before = {process.pid for process in self.find(f"replica:{pool}")}
        self.kill(f"replica:{pool}")
        while not [p for p in self.find(f"replica:{pool}") if p.pid not in before]:
            time.sleep(0.1)
        time.sleep(5)
        config.unlink()
        config.write_bytes(text)

    def await_message(self, pool: str, text: str) -> None:
        deadline = time.monotonic() + BACK_S
        while text not in self.parts()[pool].message:
            assert time.monotonic() < deadline, self.parts()
            time.sleep(0.2)

    def parts(self) -> dict[str, Any]:
        """Serve's state of each deployment; empty while its controller is away."""
        with suppress(Exception):
            return dict(serve.status().applications[APP_NAME].deployments)
        return {}

    def is_whole(self) -> bool:
        parts = self.parts()
        return bool(parts) and all(part.status == "HEALTHY" for part in parts.values())


def _limit_memory(process: psutil.Process, size: int) -> None:
    """The hard limit stays, so that the soft one can be lifted again."""
    _, hard = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (size, hard))
