"""How a replica starts, starts again after failures, and ends when its engine dies or hangs."""

import asyncio
import gc
import logging
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import psutil
import ray
from ray.serve.context import _get_internal_replica_context
from ray.util.placement_group import PlacementGroup

from actors.engine_processes import ask_for_stacks, kill_below, states
from actors.failed_starts import FailedStarts
from actors.heartbeat import Heartbeat
from actors.placement import nodes_of
from kv_transfer.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
"""The longest pause before a replica starts after failed starts, in seconds; the first one is 1 s, each next twice."""

WATCH_PERIOD_S = 0.25
NODES_PERIOD_S = 1.0
KILL_TIMEOUT_S = 5.0


class Engine(Protocol):
    """What the watch asks of an engine."""

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine cannot serve."""
        ...

    async def sign_of_life(self) -> None:
        """Return once all processes of the engine have answered."""
        ...


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch garbage collection off inside the block, and exclude the objects made there from later collections.

    The import of vLLM creates very many objects. Collections during the import take a large part of its time, and a
    full collection while the replica serves would stop it for as long. The router's HTTP app has 47,000 more, and a
    full collection of those takes 70 ms.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@asynccontextmanager
async def retried_start(pool: str, *settings: object, limit_s: float | None) -> AsyncIterator[None]:
    """The start of a replica's engine: paused after failed starts of this pool with these settings.

    Serve 2.60 starts a replica again at once, for ever, and waits for one that hangs, for ever. A start that takes
    longer than `limit_s` ends the process, so that Serve starts another one. None, and outside Ray: no limit.
    """
    starts = FailedStarts(_application(), pool, settings)
    if failures := starts.in_a_row():
        pause = min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
        logger.warning("the %s pool failed to start %d times in a row; it starts again in %g s", pool, failures, pause)
        await asyncio.sleep(pause)
    # A thread, because a starting engine blocks the event loop.
    limit = threading.Timer(limit_s or 0.0, _end_late_start, (starts, pool, limit_s))
    limit.daemon = True
    if limit_s is not None and ray.is_initialized():
        limit.start()
    try:
        yield
    except Exception as error:
        starts.failed(error)
        raise
    finally:
        limit.cancel()
    starts.succeeded()


def _application() -> str:
    """The name of the application whose replica this process is; empty outside Serve."""
    context = _get_internal_replica_context()
    return "" if context is None else str(context.app_name)


def _end_late_start(starts: FailedStarts, pool: str, limit_s: float) -> None:
    reason = f"the start took longer than start_timeout_s ({limit_s:g} s)"
    logger.error("this %s replica ends: %s", pool, reason)
    # Ray's own calls below may hang, too.
    threading.Timer(KILL_TIMEOUT_S, os._exit, (1,)).start()
    starts.failed(TimeoutError(reason))
    end_process()


class EngineWatch:
    """Ends the replica's process when its engine dies or hangs, so that Serve starts another one at once.

    Callers then see a dead replica, which they leave at once, and not one that refuses each request until Serve's
    health checks have failed often enough. Outside Ray nothing is watched.

    hung_after_s: an engine that gives no sign of life for so long hangs.
    group: the replica's placement group, if its ranks are on several nodes. The replica then also ends when it loses
    one of these nodes. Serve removes the group with the replica, which ends the ranks on the other nodes, and makes a
    new group for the next replica.
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
    kill_below(psutil.Process())
    # Ray reports an actor that is killed by this call as ended on purpose, and prints nothing on the user's terminal.
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
    time.sleep(KILL_TIMEOUT_S)
    os._exit(1)
