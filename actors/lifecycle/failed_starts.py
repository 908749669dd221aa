"""The failed starts of a pool, in Ray's key-value store: neither a replica nor Serve's controller lives as long.

Ray keeps it as long as its head lives; on KubeRay with Redis, beyond that. Outside Ray nothing is noted. Applications
in one Ray have rows of their own.
"""

import json
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from urllib.parse import quote

import ray

from actors.ray_hooks import key_value_store

PREFIX = "skim-failed-starts-"
LONGEST_REASON = 500
"""Characters of a reason that are kept."""


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
        found = _read(self._key) if ray.is_initialized() else None
        return found.failures if found else 0

    def failed(self, error: Exception) -> None:
        """Note one more failure."""
        if ray.is_initialized():
            lines = str(error).strip().splitlines() or [type(error).__name__]
            start = FailedStart(self.in_a_row() + 1, lines[-1].strip()[:LONGEST_REASON], time.time())
            key_value_store.put(self._key, json.dumps(asdict(start)))

    def succeeded(self) -> None:
        """End the row, and those of other settings: they are settings of the past."""
        if ray.is_initialized():
            _forget(self._prefix)


def last_failed_start(app: str, pool: str) -> FailedStart | None:
    """The last failed start of the pool since its last good one, whatever its settings; None if there is none."""
    if not ray.is_initialized():
        return None
    starts = [_read(key) for key in key_value_store.keys(_prefix(app, pool))]
    return max((start for start in starts if start), key=lambda start: start.at, default=None)


def forget_failed_starts(app: str) -> None:
    """Begin new rows in all pools of the application: a changed deployment starts without a pause."""
    _forget(_prefix(app))


def _prefix(app: str, pool: str = "") -> str:
    """The start of the keys of an application, or of one of its pools. An application's name may have any character."""
    return f"{PREFIX}{quote(app, safe='')}/" + (f"{pool}-" if pool else "")


def _forget(prefix: str) -> None:
    for key in key_value_store.keys(prefix):
        key_value_store.delete(key)


def _read(key: str) -> FailedStart | None:
    found = key_value_store.get(key)
    return FailedStart(**json.loads(found)) if found else None
