"""A running engine is watched: it is asked for its state, and ended with its processes if it hangs."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping

import psutil
import ray
from ray.util.placement_group import PlacementGroup

from actors.lifecycle.engine_processes import ask_for_stacks, kill_below, states
from actors.lifecycle.heartbeat import Heartbeat
from actors.multi_node import nodes_of
from kv_transfer.engine import Engine
from skim_common.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.25
NODES_PERIOD_S = 1.0
KILL_TIMEOUT_S = 5.0


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
