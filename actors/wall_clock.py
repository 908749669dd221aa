"""Whether the wall clock was set back. Until it has caught up, parts of Ray and Serve stand still.

Ray's timers wait for a time of day, among them those by which its head finds dead nodes. Serve's autoscaler takes
no report that is older than the one before (ray.serve._private.autoscaling_state). Ray's key-value store has the latest
time that was seen, for `skim status`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from actors.observability.metrics import Meter

KEY = "skim-latest-time"
PERIOD_S = 2.0
SHOWN_S = 5.0
"""A smaller step back is not told."""


class WallClock:
    """latest: the latest time that it has shown to this object, in seconds since the epoch."""

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self.latest = read()

    def behind_s(self) -> float:
        """How many seconds it is behind that time."""
        now = self._read()
        self.latest = max(self.latest, now)
        return self.latest - now


async def watch_clock(meter: Meter, clock: WallClock) -> None:
    """Record every PERIOD_S how far the clock is behind, and note it, for ever."""
    noted = 0.0
    while True:
        behind_s = clock.behind_s()
        meter.record("skim_router_clock_behind_seconds", behind_s)
        if behind_s > SHOWN_S and clock.latest > noted:
            with suppress(Exception):  # Ray's head may be away
                await asyncio.to_thread(_note, clock.latest)
                noted = clock.latest
        await asyncio.sleep(PERIOD_S)


def behind_until(read: Callable[[], float] = time.time) -> float | None:
    """The latest time that was noted, in seconds since the epoch, if the clock is behind it; otherwise None."""
    latest = _noted()
    return latest if latest - read() > SHOWN_S else None


def _note(latest: float) -> None:
    if ray.is_initialized() and latest > _noted():
        _internal_kv_put(KEY, repr(latest), overwrite=True)


def _noted() -> float:
    found = _internal_kv_get(KEY) if ray.is_initialized() else None
    return float(found) if found else 0.0
