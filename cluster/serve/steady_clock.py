"""A clock that nobody sets, for Serve's controller: it times its checks of replicas and proxies by the wall clock.

If that is set back by an hour, the controller asks no replica for its health for an hour, and replaces none that died.

Hooks into `time` in ray.serve._private.deployment_state and Timer in ray._common.utils, of the pinned Ray.
"""

import time
from typing import Any


class SteadyClock:
    """The module `time`, but `time()` begins with the wall clock's time and goes on with the monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def time(self) -> float:
        return self._offset + time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use() -> None:
    """In the process of Serve's controller."""
    from ray._common.utils import Timer
    from ray.serve._private import deployment_state

    clock = SteadyClock()
    deployment_state.time = clock
    Timer.time = lambda timer: clock.time()
