"""A long run under steady load while parts die, stop and fail to start: `python -m tests.soak --minutes 30`.

It starts one `skim serve` with mock engines: two replicas of each pool, one router. First it measures how many requests
per second this deployment can answer. The load is a share of that (`--load`): requests that arrive at random times,
whether or not earlier ones are answered. Each round is a case of `tests.soak.cases`. They come in random order
(the seed is printed), each once before one comes again. A round ends when the deployment is whole
(`tests.chaos.support.whole`). Then the load pauses, and the run looks at what is left behind. A mock answer follows
from its prompt alone, so every answer is compared with the answer of the undisturbed deployment.

Exit status 1 and a line per finding if an answer is wrong, a request hangs, a request fails though something was left
that could answer it, a process is replaced though nothing harmed it, or something leaks.
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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import yaml
from ray import serve

from benchmarks.report.machine import machine
from cluster.json_file import write_json
from cluster.serve.app import APP_NAME
from tests.chaos.support.disturbance import Disk, Disturbance, can_disturb, small_disk, variables
from tests.chaos.support.killed import BACK_S, Killed
from tests.chaos.support.whole import await_whole
from tests.e2e.conftest import skim_serve
from tests.soak.cases import ENDING, POOLS, UNSEEN, WHOLE, all_cases
from tests.soak.load import Load, Seen, learn, requests, sustainable
from tests.soak.recovery import settings
from tests.soak.usage import Sample, by_kind, samples, usage

EVICTED_S = 330.0
"""A session that no one ends is gone after this time: `DraftService.idle_s`, and a health check that evicts it."""

SESSIONS = "speculator.sessions"

FAILED = ("broken", "lost", "refused")
"""The kinds of answers that no client may see while something is left that could answer."""

MEASURED_S = 20.0
"""So long it is measured how many requests per second the deployment can answer."""


@dataclass
class Deployment:
    """The running one, and what else can be done to it; None where this machine cannot do it."""

    killed: Killed
    disturbance: Disturbance | None
    disk: Disk | None

    def processes(self) -> set[tuple[str, int]]:
        """The parts that can die, by process."""
        parts = ("ServeController", "ProxyActor", "replica:router", *(f"replica:{pool}" for pool in POOLS))
        return {(part, process.pid) for part in parts for process in self.killed.find(part)}


def left_behind(load: Load, seconds: float, *, wait_for_sessions: bool) -> dict[str, int]:
    """Requests that still run and drafting sessions that are still open, without any client, after at most `seconds`.

    Each question goes to one replica of the pool, so each pool is asked often. A target that did not reach a drafter
    reports the end of a session with its next one, so single requests go on meanwhile.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = {f"{pool}.running": _largest(pool, "running") for pool in POOLS}
        left[SESSIONS] = _largest("speculator", "sessions")
        awaited = [count for name, count in left.items() if wait_for_sessions or name != SESSIONS]
        if not any(awaited) or time.monotonic() > deadline:
            return left
        asyncio.run(load.ask_one())


def _largest(pool: str, name: str) -> int:
    handle = serve.get_deployment_handle(pool, APP_NAME)
    return max(int(handle.stats.remote().result(timeout_s=30)[name]) for _ in range(6))


def findings(case: str, seen: Seen, left: dict[str, int], *, excused: bool) -> list[str]:
    """What must not be seen in a round. excused: a session may be left to its eviction."""
    never = ("hung", "wrong", *FAILED) if case in UNSEEN else ("hung", "wrong")
    found = [f"{seen.kinds[kind]} {kind}: {seen.examples}" for kind in never if seen.kinds[kind]]
    counted = {name: count for name, count in left.items() if count and not (excused and name == SESSIONS)}
    return found + [f"left behind: {name} {count}" for name, count in counted.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.8, help="share of the requests per second that it can answer")
    parser.add_argument("--clients", type=int, default=16, help="that ask without a pause to measure this number")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="only the cases whose name has this part")
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    at_start = machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        disk = stack.enter_context(small_disk())
        disturbance = Disturbance(folder) if can_disturb() else None
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(deployment(folder)))
        reasons = {"slow files: no compiler": disturbance, "a full disk: no right to mount": disk}
        for reason in (reason for reason, part in reasons.items() if part is None):
            print(f"left out: {reason}", flush=True)
        served = skim_serve(config, folder, **variables(disturbance, disk))
        try:
            served.await_ready()
            served.join_ray()
            found = run(Deployment(Killed(served, folder), disturbance, disk), asked)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    for kind, used in found["usage"].items():
        told = f"{used['begin']['mib']:.0f} to {used['end']['mib']:.0f} MiB, {used['mib_per_minute']} MiB/min each"
        print(f"{kind}: {told}, {used['begin']['descriptors']} to {used['end']['descriptors']} descriptors")
    if asked.out:
        command = f"python -m tests.soak --minutes {asked.minutes:g} --load {asked.load:g} --seed {asked.seed}"
        write_json(asked.out, {"command": command, "machine": at_start, **found})
    return 1 if any(one["findings"] for one in found["rounds"]) else 0


def deployment(folder: Path) -> dict[str, Any]:
    """Two replicas of each pool and one router; the models lie in `folder`."""
    found = settings(folder, engines=False)
    found["selection"] = {"reuse": "off", "selector": "speculator"}
    for pool in POOLS:
        found[pool]["replicas"] = 2
    found["target"]["engine_options"] = {"prefill_ms": 50.0, "decode_ms": 20.0}
    return found


def run(deployed: Deployment, asked: argparse.Namespace) -> dict[str, Any]:
    """Settings; the rounds until the time is over, or until the deployment does not come back; usage of memory."""
    rng, url = random.Random(asked.seed), deployed.killed.served.url
    await_whole(deployed.killed, BACK_S)
    known = asyncio.run(learn(url, requests(asked.seed)))
    most = asyncio.run(sustainable(url, known, asked.clients, MEASURED_S, rng))
    rate = asked.load * most
    print(f"{most:.1f} answers/s without a pause; the load is {asked.load:g} of it: {rate:.1f} requests/s", flush=True)
    load = Load(url, known, rate, rng)
    root, since = psutil.Process(deployed.killed.served.process.pid), time.time()
    began, evicted_by = time.monotonic(), 0.0
    rounds: list[dict[str, Any]] = []
    order: list[str] = []
    looks: list[list[Sample]] = []
    while time.monotonic() < began + asked.minutes * 60 and not (rounds and rounds[-1]["missing"]):
        every = all_cases(deployed.killed, rng, deployed.disturbance, deployed.disk)
        choices = {name: act for name, act in every.items() if asked.only in name}
        order = order or rng.sample(sorted(choices), len(choices))
        case = order.pop()
        excused = case not in ENDING or time.monotonic() < evicted_by
        found = one_round(deployed, load, case, choices[case], excused=excused)
        if case not in ENDING:
            evicted_by = time.monotonic() + EVICTED_S
        looks.append(samples(root, since, time.time()))
        rounds.append({**found, "at_s": round(time.monotonic() - began, 1), "usage": by_kind(looks[-1])})
        shown = {key: found[key] for key in ("seconds", "slowest_s", "answers", "findings")}
        print(f"{case}: {json.dumps(shown)}", flush=True)
    rates = {"sustainable_per_s": round(most, 2), "rate_per_s": round(rate, 2)}
    settings = {name: getattr(asked, name) for name in ("minutes", "load", "clients", "seed")} | rates
    return {"settings": settings, "rounds": rounds, "usage": usage(looks)}


def one_round(deployed: Deployment, load: Load, case: str, act: Callable[[], None], *, excused: bool) -> dict[str, Any]:
    """What the clients saw, what was left behind, and what is missing `BACK_S` after the case."""
    began, before = time.monotonic(), deployed.processes()
    seen, missing = under(load, deployed.killed, act)
    left = left_behind(load, 30, wait_for_sessions=case in ENDING) if not missing else {}
    died = sorted(before - deployed.processes()) if case in WHOLE else []
    return {
        "case": case,
        "could_answer": case in UNSEEN,
        "seconds": round(time.monotonic() - began, 1),
        "slowest_s": round(seen.slowest_s, 1),
        "answers": dict(seen.kinds),
        "left": left,
        "missing": missing,
        "findings": missing
        + findings(case, seen, left, excused=excused)
        + [f"{part} was replaced" for part, _ in died],
    }


def under(load: Load, killed: Killed, break_it: Callable[[], None]) -> tuple[Seen, list[str]]:
    """What the clients saw, and what is still missing `BACK_S` after the case."""
    missing: list[str] = []

    def act() -> None:
        time.sleep(1)
        try:
            break_it()
            await_whole(killed, BACK_S)
        except AssertionError as error:
            missing.append(f"not whole after {BACK_S} s: {error}")
        time.sleep(1)

    return asyncio.run(load.during(act)), missing


if __name__ == "__main__":
    sys.exit(main())
