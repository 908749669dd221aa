"""Calls of a running application: its handle, and connection draining before it is deleted.

Serve's proxies answer 404 once an application is deleted.
"""

import logging
import time

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.ray_hooks.handles import init_with_own_loop

logger = logging.getLogger(__name__)

LONGEST_S = 15.0
"""Maximum time that routers keep serving while their connections drain."""

QUIET_S = 1.0
"""Time without a request after which the connections count as drained."""


def app_handle(name: str) -> DeploymentHandle:
    """The handle of the application `name`. Raises RayServeException if it does not run.

    In a pod the environment has `SERVE_SWITCHES`, with which a handle would need the event loop of its process.
    """
    handle = serve.get_app_handle(name)
    init_with_own_loop(handle)
    return handle


def drain_connections(name: str) -> None:
    """Routers close each connection with its next answer. Returns when they are idle, after `LONGEST_S` in any case.

    name: of the Serve application. Routers that do not reply are left alone.
    """
    deadline = time.monotonic() + LONGEST_S
    try:
        routers = app_handle(name)
        while any(routers.broadcast("drain").results(timeout_s=QUIET_S * 5)) and time.monotonic() < deadline:
            time.sleep(QUIET_S)
    except (RayError, RayServeException, TimeoutError) as error:
        logger.info("the routers could not send their clients away: %s", type(error).__name__)
