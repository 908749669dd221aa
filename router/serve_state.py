"""How many replicas Serve's controller counts in each deployment of this router's application."""

import asyncio
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from router.pool_states import Replicas


class ServeState:
    """Asks the controller. Its actor's name and handle stay the same when Ray restarts it."""

    def __init__(self) -> None:
        self._app = serve.get_replica_context().app_name
        self._controller: Any = None

    async def __call__(self) -> Mapping[str, Replicas]:
        """The replicas by deployment. Raises RayError or ValueError if there is no controller."""
        if self._controller is None:
            # In a thread: it waits for Ray's head.
            self._controller = await asyncio.to_thread(ray.get_actor, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        details = await self._controller.get_serve_instance_details.remote()
        return replicas_of(details["applications"].get(self._app, {"deployments": {}})["deployments"])


def replicas_of(deployments: Mapping[str, Mapping[str, Any]]) -> dict[str, Replicas]:
    """The counts by deployment. deployments: of ray.serve.schema.ApplicationDetails."""
    return {
        name: Replicas(
            configured=found["target_num_replicas"],
            running=sum(replica["state"] == "RUNNING" for replica in found["replicas"]),
        )
        for name, found in deployments.items()
    }
