"""How a replica starts: paused after failed starts of its pool, and with a time limit; and what is noted of it.

Notes are in Ray's key-value store, because neither a replica nor Serve's controller lives as long. The store lives as
long as Ray's head; on KubeRay with Redis, beyond that. Outside Ray nothing is noted.
"""

import asyncio
import gc
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from urllib.parse import quote

import ray

from actors.lifecycle.watch import KILL_TIMEOUT_S, end_process
from actors.ray_hooks.ray_core import kv_delete, kv_get, kv_keys, kv_put
from actors.ray_hooks.serve import actor_lives, this_replica

logger = logging.getLogger(__name__)

MAX_PAUSE_S = 60.0
"""The longest pause before a replica starts after failed starts, in seconds; the first one is 1 s, each next twice."""

MAX_REASON_CHARS = 500
"""Characters of a failure's reason that are kept."""

READ_PERIOD_S = 2.0
"""Each router reads the failed probes so often."""

STARTS, PROBES = "skim-failed-starts-", "skim-failed-probes-"
"""What the keys of the notes begin with."""


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Switch garbage collection off inside the block, and exclude the objects made there from later collections.

    Collections take a large part of the import of vLLM, and a full one while the replica serves would stop it for as
    long: 70 ms for the 47,000 objects of the router's HTTP app alone.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@asynccontextmanager
async def retried_start(pool: str, *settings: object, limit_s: float | None) -> AsyncIterator[None]:
    """The start of a replica's engine: paused after failed starts of this pool with these settings, which Serve repeats
    at once, for ever. A start that takes longer than `limit_s` ends the process, so that Serve starts another one;
    Serve would wait for ever. None, and outside Ray: no limit.
    """
    replica = this_replica()
    starts = FailedStarts(replica.app_name if replica else "", pool, settings)
    if failures := starts.in_a_row():
        pause = min(2.0 ** (failures - 1), MAX_PAUSE_S)
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


def _end_late_start(starts: "FailedStarts", pool: str, limit_s: float) -> None:
    reason = f"the start took longer than start_timeout_s ({limit_s:g} s)"
    logger.error("this %s replica ends: %s", pool, reason)
    # Ray's own calls below may hang, too.
    threading.Timer(KILL_TIMEOUT_S, os._exit, (1,)).start()
    starts.failed(TimeoutError(reason))
    end_process()


@dataclass(frozen=True, slots=True)
class FailedStart:
    """failures: in a row. reason: of the last one, in one line. at: when it was, in seconds since the epoch."""

    failures: int
    reason: str
    at: float


class FailedStarts:
    """The failed starts in a row of an application's pool with these settings; other settings begin a new row."""

    def __init__(self, app: str, pool: str, settings: object) -> None:
        self._prefix = _prefix(app, pool)
        self._key = f"{self._prefix}{sha256(repr(settings).encode()).hexdigest()[:16]}"

    def in_a_row(self) -> int:
        last = _read(self._key)
        return last.failures if last else 0

    def failed(self, error: Exception) -> None:
        """Note one more failure."""
        *_, reason = type(error).__name__, *str(error).strip().splitlines()
        start = FailedStart(self.in_a_row() + 1, reason.strip()[:MAX_REASON_CHARS], time.time())
        kv_put(self._key, json.dumps(asdict(start)))

    def succeeded(self) -> None:
        """End the row, and those of other settings: they are settings of the past."""
        _forget(self._prefix)


def last_failed_start(app: str, pool: str) -> FailedStart | None:
    """The last failed start of the pool since its last good one, whatever its settings; None if there is none."""
    starts = [_read(key) for key in kv_keys(_prefix(app, pool))]
    return max((start for start in starts if start), key=lambda start: start.at, default=None)


def forget_failed_starts(app: str) -> None:
    """Begin new rows in all pools of the application: a changed deployment starts without a pause."""
    _forget(_prefix(app))


def _prefix(app: str, pool: str = "") -> str:
    """The start of the keys of an application, or of one of its pools. An application's name may have any character."""
    return f"{STARTS}{quote(app, safe='')}/" + (f"{pool}-" if pool else "")


def _forget(prefix: str) -> None:
    for key in kv_keys(prefix):
        kv_delete(key)


def _read(key: str) -> FailedStart | None:
    text = kv_get(key)
    return FailedStart(**json.loads(text)) if text else None


async def note_failed_probe(reason: str) -> None:
    """Note that the start probe of this replica has failed: routers then run all prompts dense. Returns when all have
    read it."""
    if ray.is_initialized():
        kv_put(PROBES + (ray.get_runtime_context().get_actor_name() or ""), json.dumps(reason))
        await asyncio.sleep(2 * READ_PERIOD_S)


def failed_probes(app: str) -> dict[str, str]:
    """By pool, why the probe of one of its living replicas has failed. Removes the notes of others."""
    start = f"{PROBES}SERVE_REPLICA::{app}#"  # Serve names actors SERVE_REPLICA::application#deployment#id
    reasons: dict[str, str] = {}
    for key in kv_keys(start):
        if not actor_lives(key.removeprefix(PROBES)):
            kv_delete(key)
        elif reason := kv_get(key):
            reasons[key.removeprefix(start).partition("#")[0]] = json.loads(reason)
    return reasons
