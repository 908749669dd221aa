"""What Serve's logger prints on a terminal, and its log file in a replica."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler

LOGGER = "ray.serve"


@contextmanager
def kept_log_file() -> Iterator[None]:
    """Serve's log file stays in use although something that is imported in this context configures logging.

    vllm.logger calls `logging.config.dictConfig`, which closes every handler of the process. Serve's MemoryHandler then
    has no target: nothing is logged any more, and Serve's controller, when it restarts, cannot ask for the file's name
    (`get_component_logger_file_path`) and stops a healthy replica.
    """
    buffers = [h for h in logging.getLogger(LOGGER).handlers if isinstance(h, MemoryHandler)]
    targets = [(buffer, buffer.target) for buffer in buffers]
    try:
        yield
    finally:
        for buffer, target in targets:
            if buffer.target is None:
                buffer.setTarget(target)


def print_warnings_only() -> None:
    """Serve sets its logger's level itself, so a filter is needed. The terminal shows our own progress lines."""
    logging.getLogger(LOGGER).addFilter(is_for_the_user)


def is_for_the_user(record: logging.LogRecord) -> bool:
    """A router that imports vLLM answers Serve's question for its queue late; the deployment starts all the same."""
    return record.levelno >= logging.WARNING and "queue length" not in record.getMessage()
