"""Greedy streams while target replicas are killed: all must complete, with the bytes of an undisturbed run.

`python -m tests.chaos.support.lost_replicas mock` kills a replica every 2 s. `... demo` runs the demo pair in float32
and kills a replica at a random token, and the next one when the last is back. Both start their own `skim serve`.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml
from ray.serve.context import _get_global_client

from cluster.serve.app import APP_NAME
from demo_models.documents import make_document
from tests.chaos.conftest import kill
from tests.e2e.conftest import ROOT, skim_serve


@dataclass
class Stream:
    """What a client got. text, reasons, usage: of the whole stream. tokens: of the log probabilities, if asked for.

    mode: dense or speculative, if somebody has asked `GET /v1/requests/{id}` for it.
    """

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    reason: str | None = None
    usage: dict[str, Any] | None = None
    errors: list[str] = field(default_factory=list)
    request_id: str = ""
    mode: str = ""


def greedy_bodies(count: int, *, prompt_tokens: int, answer_tokens: int) -> list[dict[str, Any]]:
    """Requests with different documents and answers of different lengths, with log probabilities."""
    return [
        {
            "model": "skim-demo",
            "messages": make_document(prompt_tokens, seed).messages,
            "temperature": 0.0,
            "max_tokens": answer_tokens + 7 * (seed % 5),
            "ignore_eos": True,
            "logprobs": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for seed in range(count)
    ]


async def stream(client: httpx.AsyncClient, body: dict[str, Any], seen: Callable[[], None] = lambda: None) -> Stream:
    """One streamed chat. seen: called with each token."""
    got = Stream()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if not line.startswith("data: ") or line == "data: [DONE]":
                if line and not line.startswith("data: "):
                    got.errors.append(line)
                continue
            event = json.loads(line.removeprefix("data: "))
            got.request_id = event.get("id", got.request_id)
            if "error" in event:
                got.errors.append(event["error"]["message"])
            got.usage = event.get("usage") or got.usage
            for choice in event.get("choices", ()):
                got.text += choice["delta"].get("content") or ""
                got.tokens += [token["token"] for token in (choice.get("logprobs") or {}).get("content") or ()]
                got.reason = choice["finish_reason"] or got.reason
                seen()
    return got


async def streams(
    url: str, bodies: Sequence[dict[str, Any]], at_once: int, seen: Callable[[], None] = lambda: None
) -> list[Stream]:
    turns = asyncio.Semaphore(at_once)

    async def one(client: httpx.AsyncClient, body: dict[str, Any]) -> Stream:
        async with turns:
            try:
                return await stream(client, body, seen)
            except httpx.HTTPError as error:
                return Stream(errors=[repr(error)])

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        return list(await asyncio.gather(*(one(client, body) for body in bodies)))


class Killer:
    """Kills running target replicas under streams. choice: which one, and after how many tokens of all streams.

    every_s: kill one so often, but never the last one that runs. None: kill one at a random token, and the next one
    when `count` replicas run again. within: the tokens of all streams among which the random token is.
    """

    def __init__(self, choice: random.Random, *, count: int, every_s: float | None, within: int = 400) -> None:
        self._choice, self._count, self._every_s, self._within = choice, count, every_s, within
        self._tokens = 0
        self.killed = 0

    def seen(self) -> None:
        self._tokens += 1

    async def run(self) -> None:
        while True:
            if self._every_s is not None:
                await asyncio.sleep(self._every_s)
            else:
                await asyncio.to_thread(await_running, self._count)
                due = self._tokens + self._choice.randint(1, self._within)
                while self._tokens < due:  # noqa: ASYNC110  the streams count tokens, they signal nothing
                    await asyncio.sleep(0.01)
            names = await asyncio.to_thread(running_replicas)
            if len(names) > 1:
                kill(self._choice.choice(names))
                self.killed += 1


def await_running(count: int) -> None:
    """Until `count` target replicas answer requests."""
    deadline = time.monotonic() + 300
    while len(names := running_replicas()) != count:
        assert time.monotonic() < deadline, f"{names} run, expected {count} target replicas"
        time.sleep(0.2)


def running_replicas() -> list[str]:
    """The names of the target replicas that answer requests, sorted."""
    target = _get_global_client().get_serve_details()["applications"][APP_NAME]["deployments"]["target"]
    return sorted(replica["actor_name"] for replica in target["replicas"] if replica["state"] == "RUNNING")


async def disturbed(url: str, bodies: Sequence[dict[str, Any]], at_once: int, killer: Killer) -> list[Stream]:
    """The streams while `killer` works."""
    killing = asyncio.create_task(killer.run())
    try:
        return await streams(url, bodies, at_once, killer.seen)
    finally:
        killing.cancel()


def migrations(url: str, stream: Stream) -> list[dict[str, Any]]:
    """The migrations of a stream, from the explain view."""
    entry = httpx.get(f"{url}/v1/requests/{stream.request_id}/selection").json()
    found: list[dict[str, Any]] = entry.get("migrations", [])
    return found


def differing(quiet: Sequence[Stream], moved: Sequence[Stream]) -> list[int]:
    """The indices of the streams that are not complete or not as in the quiet run."""
    pairs = enumerate(zip(quiet, moved, strict=True))
    return [
        index
        for index, (a, b) in pairs
        if b.errors or (a.text, a.tokens, a.reason, a.usage) != (b.text, b.tokens, b.reason, b.usage)
    ]


def _settings(kind: str, replicas: int) -> dict[str, Any]:
    """A prompt is always kept alike: by a fresh selection, whatever was read before."""
    if kind == "mock":
        pool = {"engine": "mock", "model": str(ROOT / "demo_models" / "target")}
        return {
            "served_model_name": "skim-demo",
            "selection": {"reuse": "off", "selector": "speculator"},
            "speculator": {"engine": "mock", "model": str(ROOT / "demo_models" / "speculator")},
            "target": {**pool, "engine_options": {"prefill_ms": 20.0, "decode_ms": 25.0}, "replicas": replicas},
            "router": PATIENT,
        }
    return demo_settings(replicas)


PATIENT: dict[str, Any] = {
    "admission_timeout_s": 300.0,
    "select_timeout_s": 300.0,
    "speculative_prefill": "always",
    "min_prompt_tokens": 1024,
}
"""Of the router. A prompt is always kept alike, however long its selection takes."""


def demo_settings(replicas: int) -> dict[str, Any]:
    """The demo pair on vLLM in float32. replicas: of the target."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    for pool in ("speculator", "target"):
        settings[pool]["model"] = str((ROOT / "examples" / settings[pool]["model"]).resolve())
        settings[pool]["engine_options"]["dtype"] = "float32"
    settings["target"]["replicas"] = replicas
    settings["target"]["cpus_per_replica"] = settings["speculator"]["cpus_per_replica"] = 0.1
    settings["selection"] |= {"reuse": "off", "selector": "speculator"}
    settings["router"] |= {**PATIENT, "cpus": 0.1}
    return settings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["mock", "demo"])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--replicas", type=int, help="target replicas; by default 4 mock engines, or 2 real ones")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills (mock)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    settings = _settings(asked.kind, asked.replicas or {"mock": 4, "demo": 2}[asked.kind])
    bodies = greedy_bodies(asked.streams, prompt_tokens=1500, answer_tokens=100)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.yaml"
        config.write_text(yaml.safe_dump(settings))
        served = skim_serve(config, Path(folder))
        try:
            served.await_ready()
            served.join_ray()
            await_running(settings["target"]["replicas"])
            quiet = asyncio.run(streams(served.url, bodies, asked.at_once))
            every = asked.every if asked.kind == "mock" else None
            killer = Killer(random.Random(asked.seed), count=settings["target"]["replicas"], every_s=every)
            began = time.monotonic()
            moved = asyncio.run(disturbed(served.url, bodies, asked.at_once, killer))
            seconds = time.monotonic() - began
            ray.shutdown()
        finally:
            served.stop()
    wrong = differing(quiet, moved)
    complete = sum(s.reason is not None and not s.errors for s in moved)
    tokens = sum(len(s.tokens) for s in moved)
    print(
        f"{asked.kind}: {complete} of {asked.streams} streams complete, {asked.streams - len(wrong)} byte-equal;"
        f" {killer.killed} replicas killed in {seconds:.0f} s, {tokens} tokens"
    )
    for index in wrong[:5]:
        print(index, moved[index].errors, [len(s.tokens) for s in (quiet[index], moved[index])])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
