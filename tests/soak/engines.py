"""The demo pair on vLLM while its draft channel is cut or slow, or its KV cache full.

`python -m tests.soak.engines` is the part of the soak run that needs real engines: mock engines ask for no drafts
and have no KV cache. The target's connections to the speculator go through a switch (`tests.chaos.support.switch`), and
its KV cache has room for a few requests. The load is as in the soak run. Every answer, in float32, must be one of the
undisturbed deployment.

Exit status 1 and a line per finding if a request fails or its answer is wrong, if the target gets no drafts again, if
a session or a block of the KV cache is left behind, or if no request was preempted though the cache should be full.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import ray
import yaml
from ray import serve

from benchmarks.report.engine_soak import FINE
from benchmarks.report.machine import machine
from cluster.json_file import write_json
from cluster.serve.app import APP_NAME
from demo_models.ports import free_port
from tests.chaos.support.disturbance import Disturbance, can_disturb
from tests.chaos.support.killed import BACK_S, Killed
from tests.chaos.support.lost_replicas import demo_settings
from tests.chaos.support.switch import Switch, threaded
from tests.chaos.support.whole import await_whole
from tests.e2e.conftest import skim_serve
from tests.soak.load import Load, Request, Seen, learn, requests, sustainable

MAX_MODEL_LEN = 3520
BLOCK = 32
"""Tokens. An answer is longer, so that each running request needs another block when none may be left."""

BLOCKS = 112
"""Of the target's KV cache: the longest request fits in."""

AWAY_S, SLOW_S = 8.0, 0.5
BURST = 32
"""Requests at once, none of which finds its prompt in the cache."""
KEEP_RATE, ANSWER = 0.4, 96
"""What is kept of their prompts, and the tokens of their answers. By itself the speculator keeps so little of these
prompts that all answers find room."""
FULL = f"KV cache full: {BURST} requests at once"

REPORT_S = 1
"""How often Ray's processes report their metrics."""

GAUGES = {"preempted": "ray_vllm_num_preemptions_total", "kv_used": "ray_vllm_kv_cache_usage_perc"}


def deployment(port: int) -> dict[str, Any]:
    """port: of the draft channel."""
    found = demo_settings(1)
    options = found["target"]["engine_options"]
    options |= {"max_model_len": MAX_MODEL_LEN, "num_gpu_blocks_override": BLOCKS, "max_num_seqs": 16}
    options["block_size"] = BLOCK
    options["stat_loggers"] = ["vllm.v1.metrics.ray_wrappers.RayPrometheusStatLogger"]
    found["decode"]["adaptive"] = False
    found["channel"] = {"port": port}
    return found


def large(known: Sequence[Request]) -> list[Request]:
    """The longest chats with KEEP_RATE and ANSWER."""
    chats = [request for request in known if request.path == "/v1/chat/completions"][-4:]
    more = {"speculative_prefill": {"keep_rate": KEEP_RATE}, "max_tokens": ANSWER}
    return [replace(chat, body={**chat.body, **more}) for chat in chats]


def uncached(known: Sequence[Request]) -> Iterator[Request]:
    """BURST of these, each with a `cache_salt` of its own."""
    for request in islice(cycle(known), BURST):
        yield replace(request, body={**request.body, "cache_salt": uuid4().hex})


def cases(switch: Switch, load: Load, burst: Sequence[Request]) -> dict[str, Callable[[], None]]:
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
        FULL: lambda: load.burst(uncached(burst)),
    }


def counts() -> dict[str, Any]:
    """Of the target's drafting, and of vLLM, whose counts arrive later (REPORT_S)."""
    node = ray.nodes()[0]
    lines = httpx.get(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics").text.splitlines()
    found = {
        name: sum(float(line.split()[-1]) for line in lines if line.startswith(f"{gauge}{{"))
        for name, gauge in GAUGES.items()
    }
    target = _stats("target")
    counted = {name: target[name] for name in ("accepted", "fallbacks")}
    return {**found, **counted, "answered": target["channel"]["exchanges"]}


def _stats(pool: str) -> dict[str, Any]:
    found: dict[str, Any] = serve.get_deployment_handle(pool, APP_NAME).stats.remote().result(timeout_s=60)
    return found


def left_behind(load: Load, before: int) -> list[str]:
    """What is still missing or open a minute after the load. before: exchanges that the drafter answered until then."""
    deadline = time.monotonic() + 60
    while True:
        asyncio.run(load.ask_one())
        now, sessions = counts(), _stats("speculator")["sessions"]
        found = [f"{sessions} sessions"] * (sessions > 1)  # the last one is reported with the next request
        found += [f"{now['kv_used']:.0%} of the KV cache"] * bool(now["kv_used"])
        found += ["no drafts"] * (now["answered"] <= before)
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
    bad = {kind: count for kind, count in seen.kinds.items() if kind not in FINE}
    left = left_behind(load, counts()["answered"])
    time.sleep(2 * REPORT_S)
    after = counts()
    preempted = int(after["preempted"] - before["preempted"])
    return {
        "case": case,
        "seconds": round(time.monotonic() - began, 1),
        "slowest_s": round(seen.slowest_s, 1),
        "answers": dict(seen.kinds),
        "accepted": after["accepted"] - before["accepted"],
        "fallbacks": {why: count - before["fallbacks"][why] for why, count in after["fallbacks"].items()},
        "preempted": preempted,
        "findings": [
            *[f"{bad}: {seen.examples}"] * bool(bad),
            *(f"left behind: {one}" for one in left),
            *["no request was preempted"] * (case == FULL and not preempted),
        ],
    }


def run(killed: Killed, switch: Switch, asked: argparse.Namespace) -> dict[str, Any]:
    """Settings, and the rounds until the time is over."""
    rng, url = random.Random(asked.seed), killed.served.url
    await_whole(killed, BACK_S)
    known = asyncio.run(learn(url, requests(asked.seed)))
    burst = asyncio.run(learn(url, large(known)))
    most = asyncio.run(sustainable(url, known, asked.clients, 20.0, rng))
    rate = asked.load * most
    print(f"{most:.1f} answers/s without a pause; the load is {asked.load:g} of it: {rate:.1f} requests/s", flush=True)
    load, rounds = Load(url, known, rate, rng), []
    assert not (found := left_behind(load, counts()["answered"])), f"left behind before the first round: {found}"
    ends = time.monotonic() + asked.minutes * 60
    while time.monotonic() < ends:
        choices = cases(switch, load, burst)
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
        switch = stack.enter_context(threaded(port))
        disturbance = Disturbance(folder)
        disturbance.lead(port, switch.port)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(deployment(port)))
        served = skim_serve(
            config, folder, **disturbance.variables, RAY_metrics_report_interval_ms=str(REPORT_S * 1000)
        )
        try:
            served.await_ready()
            served.join_ray()
            found = run(Killed(served, folder), switch, asked)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    if asked.out:
        command = f"python -m tests.soak.engines --minutes {asked.minutes:g} --seed {asked.seed}"
        write_json(asked.out, {"command": command, "machine": at_start, **found})
    return 1 if any(one["findings"] for one in found["rounds"]) else 0


if __name__ == "__main__":
    sys.exit(main())
