"""A long run under steady load while parts die, stop and fail to start: `python -m tests.chaos.soak --minutes 30`.

It starts one `skim serve` with mock engines: two replicas of each pool, one router. Each round is a case of
`tests.chaos.recovery` or a longer stop. They come in random order (the seed is printed), each once before one comes
again. It ends when the deployment is whole (`tests.chaos.whole`). Then the load pauses, and the run looks at what is
left behind. A mock answer follows from its prompt alone, so every answer is compared with the answer of the undisturbed
deployment.

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
from typing import Any

import psutil
import ray
import yaml
from ray import serve

from benchmarks.machine import machine
from cluster.json_file import write_json
from cluster.serve.app import APP_NAME
from tests.chaos.killed import BACK_S, Killed
from tests.chaos.recovery import cases, settings
from tests.chaos.soak_load import Load, Seen, learn, requests
from tests.chaos.soak_usage import Sample, by_kind, samples, usage
from tests.chaos.whole import await_whole
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

ENDING = tuple(case for case in UNSEEN if case != "one target replica")
"""The cases after which every drafting session ends with its request. In the others its router, its target, or the
connection between them may be gone; the speculator then evicts the session when it is idle for long."""

EVICTED_S = 330.0
"""A session that no one ends is gone after this time: `DraftService.idle_s`, and a health check that evicts it."""

SESSIONS = "speculator.sessions"


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


def left_behind(seconds: float, *, wait_for_sessions: bool) -> dict[str, int]:
    """Requests that still run and drafting sessions that are still open, without any client, after at most `seconds`.

    Each question goes to one replica of the pool, so each pool is asked often.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = {f"{pool}.running": _largest(pool, "running") for pool in POOLS}
        left[SESSIONS] = _largest("speculator", "sessions")
        awaited = [count for name, count in left.items() if wait_for_sessions or name != SESSIONS]
        if not any(awaited) or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _largest(pool: str, name: str) -> int:
    handle = serve.get_deployment_handle(pool, APP_NAME)
    return max(int(handle.stats.remote().result(timeout_s=30)[name]) for _ in range(6))


def findings(case: str, seen: Seen, left: dict[str, int], *, excused: bool) -> list[str]:
    """What must not be seen in a round. excused: a session may be left to its eviction."""
    never = ("hung", "wrong", "broken", "lost", "refused") if case in UNSEEN else ("hung", "wrong")
    found = [f"{seen.kinds[kind]} {kind}: {seen.examples}" for kind in never if seen.kinds[kind]]
    counted = {name: count for name, count in left.items() if count and not (excused and name == SESSIONS)}
    return found + [f"left behind: {name} {count}" for name, count in counted.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="only the cases whose name has this part")
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    at_start = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(deployment(folder)))
        served = skim_serve(config, folder)
        try:
            served.await_ready()
            served.join_ray()
            rounds, looks = run(Killed(served, folder), asked)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    used = usage(looks)
    for kind, found in used.items():
        told = f"{found['begin']['mib']:.0f} to {found['end']['mib']:.0f} MiB, {found['mib_per_minute']} MiB/min each"
        print(f"{kind}: {told}, {found['begin']['descriptors']} to {found['end']['descriptors']} descriptors")
    if asked.out:
        command = f"python -m tests.chaos.soak --minutes {asked.minutes:g} --seed {asked.seed}"
        settings = {"minutes": asked.minutes, "clients": asked.clients, "seed": asked.seed}
        write_json(
            asked.out,
            {"command": command, "machine": at_start, "settings": settings, "rounds": rounds, "usage": used},
        )
    return 1 if any(found["findings"] for found in rounds) else 0


def deployment(folder: Path) -> dict[str, Any]:
    """Two replicas of each pool and one router; the models lie in `folder`."""
    found = settings(folder, engines=False)
    found["selection"] = {"reuse": "off"}
    for pool in POOLS:
        found[pool]["replicas"] = 2
    found["target"]["engine_options"] = {"prefill_ms": 50.0, "decode_ms": 20.0}
    return found


def run(killed: Killed, asked: argparse.Namespace) -> tuple[list[dict[str, Any]], list[list[Sample]]]:
    """The rounds until the time is over, or until the deployment does not come back; samples after each of them."""
    rng = random.Random(asked.seed)
    await_whole(killed, BACK_S)
    known = asyncio.run(learn(killed.served.url, requests(asked.seed)))
    load = Load(killed.served.url, known, asked.clients, rng)
    root, since = psutil.Process(killed.served.process.pid), time.time()
    began, evicted_by = time.monotonic(), 0.0
    rounds: list[dict[str, Any]] = []
    order: list[str] = []
    looks: list[list[Sample]] = []
    while time.monotonic() < began + asked.minutes * 60:
        choices = {name: act for name, act in all_cases(killed, rng).items() if asked.only in name}
        order = order or rng.sample(sorted(choices), len(choices))
        case = order.pop()
        at = time.monotonic()
        seen, missing = one_round(killed, load, choices[case])
        if case not in ENDING:
            evicted_by = time.monotonic() + EVICTED_S
        left = left_behind(30, wait_for_sessions=case in ENDING) if not missing else {}
        looks.append(samples(root, since, time.time()))
        found = {
            "case": case,
            "seconds": round(time.monotonic() - at, 1),
            "at_s": round(time.monotonic() - began, 1),
            "slowest_s": round(seen.slowest_s, 1),
            "answers": dict(seen.kinds),
            "left": left,
            "findings": missing + findings(case, seen, left, excused=time.monotonic() < evicted_by),
            "usage": by_kind(looks[-1]),
        }
        rounds.append(found)
        shown = {key: found[key] for key in ("seconds", "slowest_s", "answers", "findings")}
        print(f"{case}: {json.dumps(shown)}", flush=True)
        if missing:
            break
    return rounds, looks


def one_round(killed: Killed, load: Load, break_it: Callable[[], None]) -> tuple[Seen, list[str]]:
    """What the clients saw, and what is still missing `BACK_S` after the case."""
    missing: list[str] = []

    def act() -> None:
        time.sleep(1)
        break_it()
        try:
            await_whole(killed, BACK_S)
        except AssertionError as error:
            missing.append(f"not whole after {BACK_S} s: {error}")
        time.sleep(1)

    return asyncio.run(load.during(act)), missing


if __name__ == "__main__":
    sys.exit(main())
