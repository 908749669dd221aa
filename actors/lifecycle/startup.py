"""How a replica starts, and starts again after failures."""

import asyncio
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from actors.lifecycle.engine_watch import (
    KILL_TIMEOUT_S,
    end_process,
)
from actors.lifecycle.failed_starts import FailedStarts

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
"""The longest pause before a replica starts after failed starts, in seconds; the first one is 1 s, each next twice."""


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Switch garbage collection off inside the block, and exclude the objects made there from later collections.

    The import of vLLM creates very many objects. Collections during the import take a large part of its time, and a
    full collection while the replica serves would stop it for as long. The router's HTTP app has 47,000 more, and a
    full collection of those takes 70 ms.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@asynccontextmanager
async def retried_start(pool: str, *settings: object, limit_s: float | None) -> AsyncIterator[None]:
    """The start of a replica's engine: paused after failed starts of this pool with these settings.

    Serve 2.60 starts a replica again at once, for ever, and waits for one that hangs, for ever. A start that takes
    longer than `limit_s` ends the process, so that Serve starts another one. None, and outside Ray: no limit.
    """
    starts = FailedStarts(_application(), pool, settings)
    if failures := starts.in_a_row():
        pause = min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
        logger.warning("the %s pool failed to start %d times in a row; it starts again in %g s", pool, failures, pause)
        await asyncio.sleep(pause)
    # A thread, because a starting engine blocks the event loop.
    limit = threading.Timer(limit_s or 0.0, _end_late_start, (starts, pool, limit_s))
    limit.daemon = True
    if limit_s is not None and ray.is_initialized():
        limit.start()
    try:
        yield
    except Exception as error:
        starts.failed(error)
        raise
    finally:
        limit.cancel()
    starts.succeeded()


def _application() -> str:
    """The name of the application whose replica this process is; empty outside Serve."""
    try:
        return str(serve.get_replica_context().app_name)
    except RayServeException:
        return ""


def _end_late_start(starts: FailedStarts, pool: str, limit_s: float) -> None:
    reason = f"the start took longer than start_timeout_s ({limit_s:g} s)"
    logger.error("this %s replica ends: %s", pool, reason)
    # Ray's own calls below may hang, too.
    threading.Timer(KILL_TIMEOUT_S, os._exit, (1,)).start()
    starts.failed(TimeoutError(reason))
    end_process()
