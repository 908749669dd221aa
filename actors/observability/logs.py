"""Send Skim's log records to Ray Serve's log files, in the format of `observability.log_format`.

Serve configures only its own logger (ray.serve._private.logging_utils). Records that pass through it carry the
deployment, the replica and the request's id, which Serve forwards from the router to the pools.
"""

import logging

from ray import serve
from ray.serve.exceptions import RayServeException

PACKAGES = ("actors", "kv_transfer", "router", "speculator_service", "target_service")


class _ToServe(logging.Handler):
    """Passes each record to the handlers that Serve's logger has at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("ray.serve").handle(record)


def log_through_serve() -> None:
    """Call this when a replica's process starts; elsewhere it does nothing. Processes of engines are not affected."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_ToServe()], False
        logger.setLevel(logging.getLogger("ray.serve").level)
