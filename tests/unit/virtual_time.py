"""Virtual time for simulations: an event loop whose clock jumps to the next timer when nothing else is to do.

Code that only waits with asyncio runs in it unchanged, and hours take seconds. The time that the code itself computes
does not count. Nothing outside the loop (a thread, a socket) can be awaited.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

Result = TypeVar("Result")


class _Clock(selectors.DefaultSelector):
    """A selector that lets virtual time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set: the simulation waits for something outside it")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time()` is virtual and starts at 0."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(simulation: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine in virtual time. `time.perf_counter` and `time.monotonic` are virtual meanwhile."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        clock = runner.get_loop().time
        with patch.object(time, "perf_counter", clock), patch.object(time, "monotonic", clock):
            return runner.run(simulation)
