"""Our own log records go where Ray Serve's go: into its files, in the format of `observability.log_format`.

Serve sets up its own logger alone (ray.serve._private.logging_utils). Through it a record carries what Serve knows: the
deployment, the replica, and the request's id, which it passes from the router on to the pools.
"""

import logging

from ray import serve
from ray.serve.exceptions import RayServeException

PACKAGES = ("actors", "kv_transfer", "router", "speculator_service", "target_service")


class _ToServe(logging.Handler):
    """Hands on to whatever handlers Serve's logger has by then."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("ray.serve").handle(record)


def log_through_serve() -> None:
    """For a replica's process, at its start; elsewhere nothing changes. An engine's own processes are not reached."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_ToServe()], False
        logger.setLevel(logging.getLogger("ray.serve").level)
