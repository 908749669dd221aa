"""When a replica that Serve stops must hand its answers over.

Serve waits for the requests of a stopping replica for `graceful_shutdown_timeout_s`, then it kills the replica. It
tells the replica's own class nothing before the end. So this reads Serve's state of the replica
(ray.serve._private.replica.Replica): `_shutting_down` and `_deployment_config`.
"""

import time
from collections.abc import Callable
from typing import Any

from ray._private.worker import global_worker

HOOKED = (
    ("ray._private.worker", "global_worker", ""),
    ("ray._private.worker", "Worker.actors", ""),
    ("ray.serve._private.replica", "ReplicaActor._replica_impl", ""),
    ("ray.serve._private.replica", "Replica._shutting_down", ""),
    ("ray.serve._private.replica", "Replica._deployment_config", ""),
)
"""For `skim_common.symbols`."""

SPARE_S = 5.0
"""So long before the kill, answers are handed over: Serve needs up to 2 s to see that the replica is idle."""


class Draining:
    """The end of a replica. replica: Serve's object of it; None outside Serve. clock: seconds."""

    def __init__(self, replica: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica, self._clock = replica, clock
        self._began: float | None = None

    @property
    def deadline_passed(self) -> bool:
        """Whether answers that still run must go on elsewhere. Ask often: the time begins when a stop is first seen."""
        if self._replica is None or not self._replica._shutting_down:
            return False
        if self._began is None:
            self._began = self._clock()
        allowed = self._replica._deployment_config.graceful_shutdown_timeout_s
        return self._clock() - self._began >= allowed - min(SPARE_S, allowed / 2)


def own_replica() -> Any:
    """Serve's object of the replica that runs in this process; None if there is none."""
    actors = (getattr(actor, "_replica_impl", None) for actor in global_worker.actors.values())
    return next((replica for replica in actors if replica is not None), None)
