"""Send Skim's log records to Ray Serve's log files, in the format of `observability.log_format`.

Serve configures only its own logger (ray.serve._private.logging_utils). Records that pass through it carry the
deployment, the replica and the request's id, which Serve forwards from the router to the pools.
"""

import logging

from actors.ray_hooks.serve import LOGGER, this_replica

PACKAGES = ("actors", "kv_transfer", "router", "skim_common", "speculator_service", "target_service", "vllm_hooks")


class _ToServe(logging.Handler):
    """Passes each record to the handlers that Serve's logger has at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(LOGGER).handle(record)


def log_through_serve() -> None:
    """Call this when a replica's process starts; elsewhere it does nothing. A line that cannot be written is lost."""
    if this_replica() is None:
        return
    # Serve sends stderr to its log. A line that the disk has no room for would be reported there, and so without end.
    logging.raiseExceptions = False
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_ToServe()], False
        logger.setLevel(logging.getLogger(LOGGER).level)
