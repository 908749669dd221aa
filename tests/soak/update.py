"""An update under load, as KubeRay makes it: `python -m tests.soak.update --before REV [--back]`.

The version before runs from a copy of its commit, in a Ray of its own. Clients ask without a pause, through a TCP
switch. The new version starts beside it, the switch goes over once it is ready, and later the old one gets SIGTERM.
Both have mock engines. Some clients keep their connection, some connect for each request, and some read long streams.

`--back` goes from this version to the one before.
Exit status 1 and a line per kind of failure unless every request was answered, in full and with the known text.
"""

import argparse
import asyncio
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.report.machine import machine
from cluster.json_file import write_json
from demo_models.ports import free_port
from tests.chaos.support.switch import HOST, Switch
from tests.e2e.conftest import ROOT, SKIM, Served
from tests.soak.load import HUNG_S, Request, judge, learn, requests

CLIENTS = {"kept": 4, "fresh": 3, "long": 2}
"""Clients by kind: on a connection that they keep, on a new one for each request, and with streams of seconds."""

LONG_TOKENS = 300


def check_out(revision: str, folder: Path) -> Path:
    """The repository at `revision`, in `folder`."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def deployment(folder: Path, token_ms: float) -> dict[str, Any]:
    """A deployment that both versions know; the models lie in `folder`."""
    found: dict[str, Any] = {
        "served_model_name": "skim-demo",
        "router": {"speculative_prefill": "always", "min_prompt_tokens": 1024, "cpus": 0.1, "replicas": 2},
    }
    for pool in ("speculator", "target"):
        shutil.copytree(ROOT / "demo_models" / pool, folder / pool)
        found[pool] = {"model": str(folder / pool), "engine": "mock", "cpus_per_replica": 0.1, "replicas": 2}
    found["target"]["engine_options"] = {"prefill_ms": 50.0, "decode_ms": token_ms}
    return found


def start(code: Path, config: Path, log: Path) -> Served:
    """`skim serve` of the version in the folder `code`."""
    port = free_port()
    variables = {**os.environ, "PYTHONPATH": str(code)}
    with log.open("w") as out:
        command = [SKIM, "serve", config, "--port", str(port)]
        process = subprocess.Popen(command, cwd=code, stdout=out, stderr=out, env=variables)
    return Served(process, port, log)


@dataclass
class Seen:
    """What the clients saw. kinds: by phase and client, how many answers of each kind. examples: of failures."""

    phase: str = "before"
    kinds: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    examples: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def enter(self, phase: str) -> None:
        print(f"{phase}: {json.dumps(self.kinds)} {self.examples}", flush=True)
        self.phase = phase

    def summary(self) -> dict[str, Any]:
        totals = sum(self.kinds.values(), Counter[str]())
        return {
            "answered": totals["answered"],
            "failed": sum(totals.values()) - totals["answered"],
            "by_phase": {name: dict(kinds) for name, kinds in self.kinds.items()},
            "examples": self.examples,
            "slowest_s": round(self.slowest_s, 1),
        }

    def add(self, client: str, sent_in: str, kind: str, example: str, seconds: float) -> None:
        """sent_in: the phase when the request was sent."""
        self.kinds[f"{sent_in}, {client}"][kind] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if kind != "answered" and len(self.examples) < 20:
            self.examples.append(f"{sent_in} to {self.phase}, {client}, after {seconds:.2f} s: {kind}: {example[:300]}")


async def ask_on(
    kind: str,
    url: str,
    known: dict[str, list[Request]],
    seen: Seen,
    ended: asyncio.Event,
    headers: Mapping[str, str] | None = None,
) -> None:
    """One client: a request after the other. It never tries a request again."""
    rng = random.Random(kind)
    limits = httpx.Limits(max_keepalive_connections=0 if kind == "fresh" else 1)
    async with httpx.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits, headers=headers) as client:
        while not ended.is_set():
            began, phase = time.monotonic(), seen.phase
            found, example = await judge(client, rng.choice(known[kind]))
            seen.add(kind, phase, found, example, time.monotonic() - began)
            await asyncio.sleep(0.05 if found == "answered" else 0.5)


async def learn_all(
    url: str, asked: dict[str, list[Request]], headers: Mapping[str, str] | None = None
) -> dict[str, list[Request]]:
    """The requests by client, with the answers of the version at `url` beside those that are known."""

    async def of_one(request: Request) -> Request:
        [found] = await learn(url, [request], headers)
        return Request(request.path, request.body, request.known | found.known)

    return {kind: await asyncio.gather(*map(of_one, some)) for kind, some in asked.items()}


def requests_by_client() -> dict[str, list[Request]]:
    usual = requests(7)
    chats = [request for request in usual if request.body["stream"] and request.path == "/v1/chat/completions"]
    long = [Request(chat.path, {**chat.body, "max_tokens": LONG_TOKENS}) for chat in chats[:2]]
    return {"kept": usual, "fresh": usual, "long": long}


async def run(old: Served, make_new: Any, delay_s: float) -> dict[str, Any]:
    """Load through the switch from before the start of the new version until the old one has ended."""
    seen, ended = Seen(), asyncio.Event()
    known = await learn_all(old.url, requests_by_client())
    async with Switch(old.port).listening() as switch:
        url = f"http://{HOST}:{switch.port}"
        tasks = [
            asyncio.create_task(ask_on(kind, url, known, seen, ended))
            for kind, number in CLIENTS.items()
            for _ in range(number)
        ]
        new = make_new()
        try:
            await asyncio.to_thread(new.await_ready)
            async with httpx.AsyncClient(base_url=new.url) as probe:
                (await probe.get("/-/healthz")).raise_for_status()
            known.update(await learn_all(new.url, known))
            switch.backend = new.port
            seen.enter("switched")
            await asyncio.sleep(delay_s)
            still_open = switch.open[old.port]
            seen.enter("old ends")
            old.process.send_signal(signal.SIGTERM)
            stopping = time.monotonic()
            await asyncio.to_thread(old.process.wait, HUNG_S)
            stopped_s = time.monotonic() - stopping
            seen.enter("old is gone")
            await asyncio.sleep(5)
            ended.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            new.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(new.process.wait, 120)
    return {
        **seen.summary(),
        "connections_kept_until_sigterm": still_open,
        "old_ended_after_s": round(stopped_s, 1),
        "old_exit_status": old.process.returncode,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="HEAD~150", help="the commit of the version before")
    parser.add_argument("--back", action="store_true", help="from this version to the one before")
    parser.add_argument("--serve-proxy", action="store_true", help="Serve's own proxy, as in pods")
    parser.add_argument("--delay", type=float, default=10.0, help="seconds from the switch to SIGTERM")
    parser.add_argument("--token-ms", type=float, default=20.0, help="time of the target for a token")
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    revision = ["git", "rev-parse", "--short", asked.before]
    before = subprocess.run(revision, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    at_start = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(deployment(folder, asked.token_ms)))
        codes = [check_out(before, folder / "before"), ROOT]
        here, there = reversed(codes) if asked.back else codes
        old = start(here, config, folder / "old.log")
        try:
            old.await_ready()

            def make_new() -> Served:
                return start(there, config, folder / "new.log")

            found = asyncio.run(run(old, make_new, asked.delay))
        finally:
            with suppress(ProcessLookupError):
                old.process.send_signal(signal.SIGINT)
            old.process.wait(timeout=HUNG_S)
            for log in folder.glob("*.log"):
                print(f"{log.stem}:\n{log.read_text()}")
    print(json.dumps(found, indent=1))
    if asked.out:
        switches = " --back" * asked.back
        command = f"python -m tests.soak.update --before {before}{switches} --delay {asked.delay:g}"
        write_json(asked.out, {"command": command, "machine": at_start, **found})
    return int(bool(found["failed"] or found["old_exit_status"]))


if __name__ == "__main__":
    sys.exit(main())
