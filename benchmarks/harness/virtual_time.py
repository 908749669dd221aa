"""Virtual time for simulations: an event loop whose clock jumps to the next timer when nothing else is to do.

Code that only waits with asyncio runs in it unchanged, and hours take seconds. The time that the code itself computes
does not count: a function that is handed to a worker thread runs at once, in the loop. Nothing else that is outside
the loop, such as a socket, can be awaited.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
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

    def run_in_executor(self, executor: Any, func: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:  # type: ignore[override]
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(simulation: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine in virtual time. `time.perf_counter` and `time.monotonic` are virtual meanwhile."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        clock = runner.get_loop().time
        with patch.object(time, "perf_counter", clock), patch.object(time, "monotonic", clock):
            return runner.run(simulation)
