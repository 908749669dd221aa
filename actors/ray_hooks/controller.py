"""What Serve's controller knows of its applications, in a process with an event loop.

Serve's public `status` has no number of replicas that a deployment should have.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE


def actor_lives(name: str) -> bool:
    """Whether Serve has an actor of this name, such as a replica's."""
    try:
        ray.get_actor(name, SERVE_NAMESPACE)
    except ValueError:
        return False
    return True


class Controller:
    """Asks the controller. Its actor's name and handle stay the same when Ray restarts it."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def deployments(self, app: str) -> Mapping[str, Mapping[str, Any]]:
        """Fields of ray.serve.schema.DeploymentDetails by deployment. RayError, ValueError: there is no controller."""
        if self._actor is None:
            # In a thread: it waits for Ray's head.
            self._actor = await asyncio.to_thread(ray.get_actor, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        details = await self._actor.get_serve_instance_details.remote()
        found: Mapping[str, Mapping[str, Any]] = details["applications"].get(app, {"deployments": {}})["deployments"]
        return found
