"""What the soak run does to a deployment in a round, and what its clients may see of it."""

import random
import signal
import time
from collections.abc import Callable

from tests.chaos.support.disturbance import Disk, Disturbance
from tests.chaos.support.killed import Killed
from tests.soak.recovery import cases

POOLS = ("speculator", "target")

AWAY_S = 10.0
"""So long the disk is slow or full."""

SLOW_DISK, FULL_DISK = "slow disk", "full disk"

ONE_LIMITED = "one target replica, at its memory limit for 5 s"
ONE_ON_FULL_DISK = "one target replica, while the disk is full"

WHOLE = ("ServeController, stopped for 5 s", SLOW_DISK, FULL_DISK)
"""The cases that no process may die of."""

UNSEEN = (
    *WHOLE,
    "one speculator replica",
    "one target replica",
    ONE_LIMITED,
    ONE_ON_FULL_DISK,
    "speculator replica",
    "speculator replica, and again while it starts",
    "controller",
    "controller, and again while it starts",
)
"""The cases in which something is left that can answer: no client may see them. In the others nothing is left: a
request may be refused, and a connection or stream may end with an error."""

ENDING = tuple(case for case in UNSEEN if not case.startswith("one target replica"))
"""The cases after which every drafting session ends with its request. In the others its router, its target, or the
connection between them may be gone; the speculator then evicts the session when it is idle for long."""

Cases = dict[str, Callable[[], None]]


def all_cases(killed: Killed, rng: random.Random, disturbance: Disturbance | None, disk: Disk | None) -> Cases:
    """By name, what is done in a round. Without disturbance or disk, their cases are missing."""
    longer = {f"{part}, stopped for 5 s": _stopped(killed, part, 5) for part in ("ServeController", "ProxyActor")}
    single = {f"one {pool} replica": _one_killed(killed, pool, rng) for pool in POOLS}
    paused = {f"{pool} replicas, stopped for 3 s": _stopped(killed, f"replica:{pool}", 3) for pool in POOLS}
    limited = {ONE_LIMITED: lambda: killed.at_limit([killed.one_of("target", rng)])}
    found = single | longer | paused | limited | cases(killed, engines=False)
    if disturbance is not None:
        found[SLOW_DISK] = lambda: disturbance.slow_files(AWAY_S)
    if disk is not None:
        found[FULL_DISK] = lambda: disk.full(AWAY_S)
        found[ONE_ON_FULL_DISK] = lambda: disk.full(AWAY_S, killed.one_of("target", rng).kill)
    return found


def _stopped(killed: Killed, part: str, seconds: float) -> Callable[[], None]:
    """The part is stopped by SIGSTOP and goes on later, as after a pause of its machine."""

    def act() -> None:
        processes = killed.find(part)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)

    return act


def _one_killed(killed: Killed, pool: str, rng: random.Random) -> Callable[[], None]:
    return lambda: killed.one_of(pool, rng).kill()
