"""A running engine is watched: it is asked for its state, and ended with its processes if it dies or hangs."""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.util.placement_group import PlacementGroup

from actors.multi_node import nodes_of
from kv_transfer.engine import Engine
from skim_common.errors import EngineUnavailableError
from vllm_hooks.start_up import STACKS_SIGNAL

logger = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.25
NODES_PERIOD_S = 1.0
KILL_TIMEOUT_S = 5.0
STACKS_S = 1.0
"""Time in which the processes write their stacks."""

SHARE = 10
"""A call is sent when the last answer is limit_s / SHARE old, and a pause between two looks counts as no more."""


class Heartbeat:
    """Tells an engine that hangs from one that is busy, which answers a call between two of its steps.

    An engine hangs with a stopped process (SIGSTOP), a kernel that does not end, or a collective operation whose
    partner is away: its processes live, so nothing else sees it. Only the time that this process has seen counts: if it
    was itself stopped, an answer may wait to be read.
    """

    def __init__(
        self,
        ask: Callable[[], Coroutine[Any, Any, None]],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ask: returns once the engine has answered. An error is an answer: the engine's own health says what it means.
        limit_s: an engine without an answer for so long hangs."""
        self._ask, self._limit_s, self._clock = ask, limit_s, clock
        self._silent_s, self._looked_at = 0.0, clock()
        self._call: asyncio.Task[None] | None = None

    def hangs(self) -> bool:
        """Whether the engine hangs. Never waits. Ask several times in each limit_s / SHARE."""
        now = self._clock()
        self._silent_s += min(now - self._looked_at, self._limit_s / SHARE)
        self._looked_at = now
        if self._call is not None and self._call.done():
            if not self._call.cancelled():
                self._call.exception()  # asyncio logs errors that nobody has read
            self._call, self._silent_s = None, 0.0
        if self._call is None and self._silent_s >= self._limit_s / SHARE:
            self._call = asyncio.create_task(self._ask())
        return self._silent_s >= self._limit_s

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()


class EngineWatch:
    """Ends the replica's process when its engine dies or hangs: callers leave a dead replica at once, and Serve starts
    another one. Outside Ray nothing is watched.

    group: the replica's placement group, if its ranks are on several nodes. The replica then also ends when it loses
    one of these nodes. Serve removes the group with the replica, which ends the ranks on the other nodes.
    """

    def __init__(
        self, engine: Engine, pool: str, group: PlacementGroup | None = None, *, hung_after_s: float = math.inf
    ) -> None:
        self._engine, self._pool, self._hung_after_s = engine, pool, hung_after_s
        self._heartbeat = Heartbeat(engine.sign_of_life, hung_after_s)
        watches = [self._watch()] if ray.is_initialized() else []
        if watches and group is not None:
            watches.append(self._watch_nodes(group, nodes_of(group)))
        self._tasks = [asyncio.create_task(watch) for watch in watches]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            await self.check()

    async def _watch_nodes(self, group: PlacementGroup, nodes: Mapping[int, str]) -> None:
        """Ray moves the bundles of a dead node to another node. The ranks do not move with them."""
        while True:
            await asyncio.sleep(NODES_PERIOD_S)
            if await asyncio.to_thread(nodes_of, group) != nodes:
                logger.error("this %s replica ends, because it has lost one of its nodes", self._pool)
                end_process()

    async def check(self) -> None:
        """End the process if the engine is dead or hangs; does nothing otherwise."""
        if not self._tasks:
            return
        try:
            await self._engine.check_health()
        except EngineUnavailableError as error:
            logger.error("this %s replica ends, because its engine is gone: %s", self._pool, error)
            end_process()
            return
        if self._heartbeat.hangs():
            replica = psutil.Process()
            logger.error(
                "this %s replica ends, because its engine hangs: no sign of life for %g s (hung_after_s); processes: "
                "%s; the stacks of those that run follow",
                self._pool,
                self._hung_after_s,
                states(replica),
            )
            await asyncio.to_thread(ask_for_stacks, replica)
            end_process()

    def stop(self) -> None:
        """Watch no longer: the engine is about to be closed on purpose."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._heartbeat.stop()


def end_process() -> None:
    """End this replica and its engine at once. The interpreter's own end would wait for an engine that hangs."""
    logging.shutdown()
    signal_below(psutil.Process(), signal.SIGKILL)
    # Ray reports an actor that is killed by this call as ended on purpose, and prints nothing on the user's terminal.
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
    time.sleep(KILL_TIMEOUT_S)
    os._exit(1)


def states(replica: psutil.Process) -> str:
    """Name, process id and state (`stopped`, `running`, ...) of each process below, for a log line."""
    processes = []
    for process in _below(replica):
        with suppress(psutil.Error):
            name = (process.cmdline() or [process.name()])[0]
            processes.append(f"{name:.40} {process.pid} ({process.status()})")
    return ", ".join(processes) or "none"


def ask_for_stacks(replica: psutil.Process) -> None:
    """Let each process below write the stacks of its threads to its log. Takes STACKS_S. One that has not called
    `show_stacks_when_asked` ends, so this is only for an engine that is about to be killed.
    """
    signal_below(replica, STACKS_SIGNAL)
    time.sleep(STACKS_S)


def signal_below(replica: psutil.Process, number: int) -> None:
    """Send a signal to each process below. Does not wait for its effect."""
    for process in _below(replica):
        with suppress(psutil.Error):
            process.send_signal(number)


def _below(replica: psutil.Process) -> Iterator[psutil.Process]:
    """The processes that `replica` and its children have started, but for the one that removes shared memory."""
    for child in replica.children(recursive=True):
        with suppress(psutil.Error):
            if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                yield child
