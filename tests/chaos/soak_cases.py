"""What the soak run does to a deployment in a round, and what its clients may see of it."""

import random
import signal
import time
from collections.abc import Callable

from tests.chaos.disturbance import JUMP_S, Disk, Disturbance
from tests.chaos.killed import BACK_S, Killed
from tests.chaos.recovery import cases
from tests.chaos.whole import await_whole

POOLS = ("speculator", "target")

AWAY_S = 10.0
"""So long the clock is wrong, or the disk slow or full."""

JUMPS = {"the clock jumps an hour ahead, and back": JUMP_S, "the clock jumps an hour back, and ahead": -JUMP_S}
SLOW_DISK, FULL_DISK = "slow disk", "full disk"

ONE_LIMITED = "one target replica, at its memory limit for 5 s"
ONE_ON_FULL_DISK = "one target replica, while the disk is full"
ONE_IN_THE_PAST = "one target replica, after the clock has jumped an hour back"

WHOLE = ("ServeController, stopped for 5 s", *JUMPS, SLOW_DISK, FULL_DISK)
"""The cases that no process may die of."""

UNSEEN = (
    *WHOLE,
    "one speculator replica",
    "one target replica",
    ONE_LIMITED,
    ONE_ON_FULL_DISK,
    ONE_IN_THE_PAST,
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
    longer = {f"{part}, stopped for 5 s": _stopped(killed, part, 5) for part in ("ServeController", "HAProxyManager")}
    single = {f"one {pool} replica": _one_killed(killed, pool, rng) for pool in POOLS}
    paused = {f"{pool} replicas, stopped for 3 s": _stopped(killed, f"replica:{pool}", 3) for pool in POOLS}
    limited = {ONE_LIMITED: lambda: killed.at_limit([killed.one_of("target", rng)])}
    found = single | longer | paused | limited | cases(killed, engines=False)
    if disturbance is not None:
        found |= {name: lambda by_s=by_s: disturbance.clock_away(by_s, AWAY_S) for name, by_s in JUMPS.items()}
        found[SLOW_DISK] = lambda: disturbance.slow_files(AWAY_S)
        found[ONE_IN_THE_PAST] = lambda: _killed_in_the_past(killed, disturbance, rng)
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


def _killed_in_the_past(killed: Killed, disturbance: Disturbance, rng: random.Random) -> None:
    """The deployment must be whole before the clock is right again."""
    with disturbance.clock(-JUMP_S):
        time.sleep(1)
        killed.one_of("target", rng).kill()
        await_whole(killed, BACK_S)
