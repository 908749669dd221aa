"""The demo pair on vLLM while its draft channel is cut or slow, or its KV cache full.

`python -m tests.chaos.soak_engines` is the part of the soak run that needs real engines: mock engines ask for no drafts
and have no KV cache. The target's connections to the speculator go through a switch (`tests.chaos.switch`), and its KV
cache has room for a few requests. The load is as in the soak run. Every answer, in float32, must be one of the
undisturbed deployment.

Exit status 1 and a line per finding if a request fails or its answer is wrong, if the target gets no drafts again, or
if a session or a block of the KV cache is left behind.
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
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml
from ray import serve

from benchmarks.machine import machine
from cluster.json_file import write_json
from cluster.serve.app import APP_NAME
from cluster.serve.preflight import free_port
from tests.chaos.disturbance import Disturbance, can_disturb
from tests.chaos.killed import BACK_S, Killed
from tests.chaos.lost_replicas import demo_settings
from tests.chaos.soak_load import Load, Seen, learn, requests, sustainable
from tests.chaos.switch import Switch, threaded
from tests.chaos.whole import await_whole
from tests.e2e.conftest import skim_serve

MAX_MODEL_LEN = 4096
BLOCKS = 36
"""Blocks of the target's KV cache, of 128 tokens: the longest request fits in."""

AWAY_S, SLOW_S = 8.0, 0.5
BURST = 32
"""Requests at once, of 3 to 25 blocks each."""

GAUGES = {"preempted": "ray_vllm_num_preemptions_total", "kv_used": "ray_vllm_kv_cache_usage_perc"}


def deployment(port: int) -> dict[str, Any]:
    """port: of the draft channel."""
    found = demo_settings(1)
    options = found["target"]["engine_options"]
    options |= {"max_model_len": MAX_MODEL_LEN, "num_gpu_blocks_override": BLOCKS, "max_num_seqs": 16}
    options["stat_loggers"] = ["vllm.v1.metrics.ray_wrappers.RayPrometheusStatLogger"]
    found["decode"]["adaptive"] = False
    found["channel"] = {"port": port}
    return found


def cases(switch: Switch, load: Load) -> dict[str, Callable[[], None]]:
    """By name, what is done in a round."""

    def cut() -> None:
        switch.cut()
        time.sleep(AWAY_S)
        switch.mend()

    def slow() -> None:
        switch.delay_s = SLOW_S
        time.sleep(AWAY_S)
        switch.delay_s = 0.0

    return {
        "draft channel cut": cut,
        f"draft channel slower by {SLOW_S:g} s in each direction": slow,
        f"KV cache full: {BURST} requests at once": partial(load.burst, BURST),
    }


def counts() -> dict[str, Any]:
    """Of the target's drafting, and of vLLM, whose counts arrive some seconds later."""
    node = ray.nodes()[0]
    lines = httpx.get(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics").text.splitlines()
    found = {
        name: sum(float(line.split()[-1]) for line in lines if line.startswith(f"{gauge}{{"))
        for name, gauge in GAUGES.items()
    }
    target = _stats("target")
    return {**found, "accepted": target["accepted"], "fallbacks": target["fallbacks"], "resumed": target["resumed"]}


def _stats(pool: str) -> dict[str, Any]:
    found: dict[str, Any] = serve.get_deployment_handle(pool, APP_NAME).stats.remote().result(timeout_s=60)
    return found


def left_behind(load: Load, before: int) -> list[str]:
    """What is still missing or open a minute after the load. before: drafts that were accepted when it ended."""
    deadline = time.monotonic() + 60
    while True:
        asyncio.run(load.ask_one())
        now, sessions = counts(), _stats("speculator")["sessions"]
        found = [f"{sessions} sessions"] * (sessions > 1)  # the last one is reported with the next request
        found += [f"{now['kv_used']:.0%} of the KV cache"] * bool(now["kv_used"])
        found += ["no drafts"] * (now["accepted"] <= before)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1)


def one_round(load: Load, case: str, act: Callable[[], None]) -> dict[str, Any]:
    def around() -> None:
        time.sleep(1)
        act()
        time.sleep(2)

    began, before = time.monotonic(), counts()
    seen: Seen = asyncio.run(load.during(around))
    bad = {kind: count for kind, count in seen.kinds.items() if kind not in ("answered", "left")}
    left = left_behind(load, counts()["accepted"])
    after = counts()
    return {
        "case": case,
        "seconds": round(time.monotonic() - began, 1),
        "slowest_s": round(seen.slowest_s, 1),
        "answers": dict(seen.kinds),
        "accepted": after["accepted"] - before["accepted"],
        "fallbacks": {why: count - before["fallbacks"][why] for why, count in after["fallbacks"].items()},
        "resumed": after["resumed"] - before["resumed"],
        "preempted": after["preempted"] - before["preempted"],
        "findings": [f"{bad}: {seen.examples}"] * bool(bad) + [f"left behind: {one}" for one in left],
    }


def run(killed: Killed, switch: Switch, asked: argparse.Namespace) -> dict[str, Any]:
    """Settings, and the rounds until the time is over."""
    rng, url = random.Random(asked.seed), killed.served.url
    await_whole(killed, BACK_S)
    known = asyncio.run(learn(url, requests(asked.seed)))
    most = asyncio.run(sustainable(url, known, asked.clients, 20.0, rng))
    rate = asked.load * most
    print(f"{most:.1f} answers/s without a pause; the load is {asked.load:g} of it: {rate:.1f} requests/s", flush=True)
    load, rounds, ends = Load(url, known, rate, rng), [], time.monotonic() + asked.minutes * 60
    while time.monotonic() < ends:
        choices = cases(switch, load)
        for case in rng.sample(sorted(choices), len(choices)):
            rounds.append(one_round(load, case, choices[case]))
            print(json.dumps(rounds[-1]), flush=True)
    rates = {"sustainable_per_s": round(most, 2), "rate_per_s": round(rate, 2)}
    return {"settings": {name: getattr(asked, name) for name in ("minutes", "load", "seed")} | rates, "rounds": rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--load", type=float, default=0.8, help="share of the requests per second that it can answer")
    parser.add_argument("--clients", type=int, default=8, help="that ask without a pause to measure this number")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    if not can_disturb():
        print("nothing was run: the connections are led through the switch by a library, which needs the compiler `cc`")
        return 1
    print(f"seed {asked.seed}", flush=True)
    at_start, port = machine(), free_port()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        switch = stack.enter_context(threaded(port, ray.util.get_node_ip_address()))
        disturbance = Disturbance(folder)
        disturbance.lead(port, switch.port)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(deployment(port)))
        served = skim_serve(config, folder, **disturbance.variables)
        try:
            served.await_ready()
            served.join_ray()
            found = run(Killed(served, folder), switch, asked)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    if asked.out:
        command = f"python -m tests.chaos.soak_engines --minutes {asked.minutes:g} --seed {asked.seed}"
        write_json(asked.out, {"command": command, "machine": at_start, **found})
    return 1 if any(one["findings"] for one in found["rounds"]) else 0


if __name__ == "__main__":
    sys.exit(main())
