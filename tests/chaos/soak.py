"""A long run under steady load while parts die, stop and fail to start: `python -m tests.chaos.soak --minutes 30`.

It starts one `skim serve` with mock engines: two replicas of each pool, one router. Each round draws a case of
`tests.chaos.recovery` or a longer stop at random (the seed is printed), and ends when all parts have their size again.
Then the load pauses, and the run looks at what is left behind. A mock answer follows from its prompt alone, so every
answer is compared with the answer of the undisturbed deployment.

Exit status 1 and a line per finding if an answer is wrong, a request hangs, a request fails though one of two replicas
was left, or something leaks.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray
import yaml
from ray import serve

from cluster.serve.app import APP_NAME
from tests.chaos.recovery import BACK_S, Killed, cases, settings
from tests.chaos.soak_load import Load, Seen, learn, requests
from tests.e2e.conftest import skim_serve

POOLS = ("speculator", "target")
UNSEEN = (
    "one speculator replica",
    "one target replica",
    "speculator replica",
    "speculator replica, and again while it starts",
    "controller",
    "controller, and again while it starts",
    "ServeController, stopped for 5 s",
)
"""The cases that no client may see. In the others nothing is left that could answer: a request may be refused, and a
connection or stream may end with an error."""


def stopped(killed: Killed, part: str, seconds: float) -> Callable[[], None]:
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


def one_of(killed: Killed, part: str, rng: random.Random) -> Callable[[], None]:
    """One of several replicas is killed."""
    return lambda: rng.choice(sorted(killed.find(part), key=lambda process: process.pid)).kill()


def all_cases(killed: Killed, rng: random.Random) -> dict[str, Callable[[], None]]:
    """By name, what is done in a round."""
    longer = {f"{part}, stopped for 5 s": stopped(killed, part, 5) for part in ("ServeController", "HAProxyManager")}
    single = {f"one {pool} replica": one_of(killed, f"replica:{pool}", rng) for pool in POOLS}
    paused = {f"{pool} replicas, stopped for 3 s": stopped(killed, f"replica:{pool}", 3) for pool in POOLS}
    return single | longer | paused | cases(killed, engines=False)


def resources(killed: Killed) -> dict[str, tuple[float, float, int]]:
    """By process: when it began, MiB of memory, number of open descriptors."""
    found = {}
    for process in psutil.Process(killed.served.process.pid).children(recursive=True):
        try:
            name = " ".join(process.cmdline())[:60] or process.name()
            memory = process.memory_info().rss / 2**20
            found[f"{process.pid} {name}"] = (process.create_time(), memory, process.num_fds())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def await_whole(killed: Killed) -> None:
    """Until all parts have their size, for one second. Raises AssertionError with their messages."""
    deadline, whole_since = time.monotonic() + BACK_S, None
    while whole_since is None or time.monotonic() - whole_since < 1:
        whole_since = (whole_since or time.monotonic()) if killed.is_whole() else None
        assert time.monotonic() < deadline, {name: part.message for name, part in killed.parts().items()}
        time.sleep(0.2)


def left_behind(seconds: float) -> dict[str, int]:
    """Requests that still run and drafting sessions that are still open, without any client, after at most `seconds`.

    Each question goes to one replica of the pool, so each pool is asked often.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = {f"{pool}.{name}": _largest(pool, name) for pool in POOLS for name in ("running",)}
        left["speculator.sessions"] = _largest("speculator", "sessions")
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _largest(pool: str, name: str) -> int:
    handle = serve.get_deployment_handle(pool, APP_NAME)
    return max(int(handle.stats.remote().result(timeout_s=30)[name]) for _ in range(6))


def growth(rounds: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """MiB and descriptors that each process gained from the first half of its rounds to its last, by medians."""
    found = {}
    for name in {name for one in rounds for name in one["resources"]}:
        series = [one["resources"][name][1:] for one in rounds if name in one["resources"]]
        half = len(series) // 2
        if half >= 3:
            gained = [median(x[i] for x in series[half:]) - median(x[i] for x in series[:half]) for i in (0, 1)]
            found[name] = (round(gained[0], 1), int(gained[1]))
    return found


def findings(case: str, seen: Seen, left: dict[str, int]) -> list[str]:
    """What must not be seen in a round."""
    never = ("hung", "wrong", "broken", "lost", "refused") if case in UNSEEN else ("hung", "wrong")
    found = [f"{seen.kinds[kind]} {kind}: {seen.examples}" for kind in never if seen.kinds[kind]]
    return found + [f"left behind: {name} {count}" for name, count in left.items() if count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="only the cases whose name has this part")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "serve.yaml"
        deployment = settings(folder, engines=False)
        deployment["selection"] = {"reuse": "off"}
        for pool in POOLS:
            deployment[pool]["replicas"] = 2
        deployment["target"]["engine_options"] = {"prefill_ms": 50.0, "decode_ms": 20.0}
        config.write_text(yaml.safe_dump(deployment))
        served = skim_serve(config, folder)
        try:
            served.await_ready()
            served.join_ray()
            rounds = run(Killed(served, folder), asked, rng)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    gained = growth(rounds)
    for process, (memory, descriptors) in sorted(gained.items()):
        print(f"{process}: {memory:+} MiB, {descriptors:+} descriptors")
    if asked.json:
        whole = {"seed": asked.seed, "minutes": asked.minutes, "rounds": rounds, "growth": gained}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n")
    return 1 if any(found["findings"] for found in rounds) else 0


def run(killed: Killed, asked: argparse.Namespace, rng: random.Random) -> list[dict[str, Any]]:
    """The rounds, until the time is over."""
    known = asyncio.run(learn(killed.served.url, requests(asked.seed)))
    load = Load(killed.served.url, known, asked.clients, rng)
    ended, rounds = time.monotonic() + asked.minutes * 60, []
    while time.monotonic() < ended:
        choices = {name: act for name, act in all_cases(killed, rng).items() if asked.only in name}
        case = rng.choice(sorted(choices))
        began = time.monotonic()

        def act(case: str = case, choices: dict[str, Callable[[], None]] = choices) -> None:
            time.sleep(1)
            choices[case]()
            await_whole(killed)
            time.sleep(1)

        seen = asyncio.run(load.during(act))
        seconds = time.monotonic() - began
        left = left_behind(30)
        found = {
            "case": case,
            "seconds": round(seconds, 1),
            "slowest_s": round(seen.slowest_s, 1),
            "answers": dict(seen.kinds),
            "findings": findings(case, seen, left),
            "resources": resources(killed),
        }
        rounds.append(found)
        shown = {key: found[key] for key in ("seconds", "slowest_s", "answers", "findings")}
        print(f"{case}: {json.dumps(shown)}", flush=True)
    return rounds


if __name__ == "__main__":
    sys.exit(main())
