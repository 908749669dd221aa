"""Send Skim's log records to Ray Serve's log files, in the format of `observability.log_format`.

Serve configures only its own logger (ray.serve._private.logging_utils). Records that pass through it carry the
deployment, the replica and the request's id, which Serve forwards from the router to the pools.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler

from ray import serve
from ray.serve.exceptions import RayServeException

PACKAGES = ("actors", "kv_transfer", "router", "skim_common", "speculator_service", "target_service")


class _ToServe(logging.Handler):
    """Passes each record to the handlers that Serve's logger has at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("ray.serve").handle(record)


@contextmanager
def kept_log_file() -> Iterator[None]:
    """Serve's log file stays in use although something that is imported in this context configures logging.

    vllm.logger calls `logging.config.dictConfig`, which closes every handler of the process. Serve's MemoryHandler then
    has no target: nothing is logged any more, and Serve's controller, when it restarts, cannot ask for the file's name
    (`get_component_logger_file_path`) and stops a healthy replica.
    """
    buffers = [h for h in logging.getLogger("ray.serve").handlers if isinstance(h, MemoryHandler)]
    targets = [(buffer, buffer.target) for buffer in buffers]
    try:
        yield
    finally:
        for buffer, target in targets:
            if buffer.target is None:
                buffer.setTarget(target)


def log_through_serve() -> None:
    """Call this when a replica's process starts; elsewhere it does nothing. Processes of engines are not affected.

    A line that cannot be written is lost, and says nothing of that on stderr.
    """
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    # Serve sends stderr to its log. A line that the disk has no room for would be reported there, and so without end.
    logging.raiseExceptions = False
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_ToServe()], False
        logger.setLevel(logging.getLogger("ray.serve").level)
