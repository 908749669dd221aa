"""Greedy streams while engines, replicas and the controller die: `python -m tests.soak.lost_parts --streams 200`.

It starts one `skim serve` with the demo pair in float32, and learns all answers. Then it asks again and again. It kills
one part by SIGKILL after a random number of tokens, and the next one when the last is back, until each has died. Every
answer must be complete and have the bytes of the undisturbed one. A request that ran dense while no speculator answered
is compared with its dense answer. Streams of killed routers and proxies end with them, so these parts are left alone.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
import yaml

from benchmarks.report.machine import machine
from cluster.json_file import write_json
from tests.chaos.support.killed import BACK_S, Killed
from tests.chaos.support.lost_replicas import Stream, demo_settings, differing, greedy_bodies, stream
from tests.chaos.support.whole import await_whole
from tests.e2e.conftest import skim_serve

SELECT_TIMEOUT_S = 15.0
"""Longer than a selection on a busy machine, and shorter than the start of an engine: a request then runs dense."""

WITHIN = 300
"""A part dies within so many tokens of all streams after the last one is back."""


Parts = dict[str, Callable[[], list[psutil.Process]]]


def victims(killed: Killed, ranks: int) -> Parts:
    """By name, the processes of which one is killed."""
    found: Parts = {}
    for pool in ("speculator", "target"):
        found[f"engine of a {pool}"] = lambda pool=pool: killed.below(f"replica:{pool}", "EngineCore")
        found[f"{pool} replica"] = lambda pool=pool: killed.find(f"replica:{pool}")
    if ranks > 1:
        found["rank of a target"] = lambda: killed.below("replica:target", "Worker")
    return {**found, "controller": lambda: killed.find("ServeController")}


class Killer:
    """Kills one part after the other under streams. kills: what was killed, and the seconds until all was whole.

    done: each part has died once, or the time is over, or something did not come back.
    """

    def __init__(self, killed: Killed, parts: Parts, rng: random.Random) -> None:
        self._killed, self._parts, self._rng = killed, parts, rng
        self._tokens = 0
        self.kills: list[dict[str, Any]] = []
        self.done = False

    def seen(self) -> None:
        """A stream got a token."""
        self._tokens += 1

    async def run(self, limit_s: float) -> None:
        """Until each part has died once, or `limit_s` are over."""
        ends = time.monotonic() + limit_s
        try:
            for part in self._rng.sample(sorted(self._parts), len(self._parts)):
                due = self._tokens + self._rng.randint(1, WITHIN)
                while self._tokens < due:  # noqa: ASYNC110  the streams count tokens, they signal nothing
                    await asyncio.sleep(0.01)
                if time.monotonic() > ends:
                    return
                await asyncio.to_thread(self._kill, part)
        finally:
            self.done = True

    def _kill(self, part: str) -> None:
        found = self._parts[part]()
        assert found, f"no process of {part}"
        began = time.monotonic()
        self._rng.choice(sorted(found, key=lambda process: process.pid)).kill()
        kill: dict[str, Any] = {"part": part, "back_s": None}
        self.kills.append(kill)
        await_whole(self._killed, BACK_S)
        kill["back_s"] = round(time.monotonic() - began, 1)
        print(f"{part}: whole after {kill['back_s']} s", flush=True)


Seen = tuple[int, Stream, dict[str, Any]]
"""The index of a body, its stream, and its entry in the explain view ({} for a dense one)."""


async def ask(
    url: str,
    bodies: Sequence[dict[str, Any]],
    order: Iterable[int],
    at_once: int,
    seen: Callable[[], None] = lambda: None,
) -> list[Seen]:
    """The streams of the bodies with these indices, begun in this order. seen: called with each token."""
    left, found = iter(order), []

    async def some(client: httpx.AsyncClient) -> None:
        for index in left:
            try:
                got = await stream(client, bodies[index], seen)
                entry = await client.get(f"/v1/requests/{got.request_id}/selection")
                told = await client.get(f"/v1/requests/{got.request_id}")
            except httpx.HTTPError as error:
                found.append((index, Stream(errors=[repr(error)]), {}))
            else:
                got.mode = told.json()["headers"].get("x-skim-mode", "") if told.status_code == 200 else ""
                found.append((index, got, entry.json() if entry.status_code == 200 else {}))

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*(some(client) for _ in range(at_once)))
    return found


async def disturbed(
    url: str, bodies: Sequence[dict[str, Any]], at_once: int, killer: Killer, limit_s: float
) -> list[Seen]:
    """The streams while `killer` works, each body at least once."""
    killing = asyncio.create_task(killer.run(limit_s))
    order = (at % len(bodies) for at in takewhile(lambda at: at < len(bodies) or not killer.done, count()))
    found = await ask(url, bodies, order, at_once, killer.seen)
    await killing
    return found


def measure(killed: Killed, asked: argparse.Namespace) -> dict[str, Any]:
    """Counts over all streams: complete, byte_equal, moved, dense; and the kills."""
    bodies = greedy_bodies(asked.streams, prompt_tokens=asked.prompt_tokens, answer_tokens=asked.answer_tokens)
    parts = {name: find for name, find in victims(killed, asked.ranks).items() if asked.only in name}
    url, began = killed.served.url, time.monotonic()
    quiet = asyncio.run(ask(url, bodies, range(len(bodies)), asked.at_once))
    assert all(one.mode == "speculative" for _, one, _ in quiet), "a prompt ran dense undisturbed"
    quiet_s = time.monotonic() - began
    killer, began = Killer(killed, parts, random.Random(asked.seed)), time.monotonic()
    got = asyncio.run(disturbed(url, bodies, asked.at_once, killer, 60 * asked.minutes))
    seconds = time.monotonic() - began
    await_whole(killed, BACK_S)
    whole = [{**body, "speculative_prefill": {"enabled": False}} for body in bodies]
    ran_dense = sorted({index for index, one, _ in got if one.mode == "dense"})
    kept = {index: known for index, known, _ in quiet}
    dense = {index: known for index, known, _ in asyncio.run(ask(url, whole, ran_dense, asked.at_once))}
    expected = [(dense if one.mode == "dense" else kept)[index] for index, one, _ in got]
    streams = [one for _, one, _ in got]
    wrong = differing(expected, streams)
    return {
        "streams": len(streams),
        "complete": sum(one.reason is not None and not one.errors for one in streams),
        "byte_equal": len(streams) - len(wrong),
        "moved": sum(bool(entry.get("migrations")) for *_, entry in got),
        "dense": sum(one.mode == "dense" for one in streams),
        "tokens": sum(len(one.tokens) for one in streams),
        "seconds": round(seconds, 1),
        "quiet_seconds": round(quiet_s, 1),
        "kills": killer.kills,
        "wrong": [
            {"prompt": got[at][0], "errors": streams[at].errors, "expected": expected[at].text, "got": streams[at].text}
            for at in wrong
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200, help="different prompts; each is asked at least once")
    parser.add_argument("--minutes", type=float, default=10, help="no part is killed later")
    parser.add_argument("--speculators", type=int, default=1, help="replicas; requests run dense while none is up")
    parser.add_argument("--targets", type=int, default=2, help="replicas")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1100)
    parser.add_argument("--answer-tokens", type=int, default=60, help="of the shortest answers; the others have more")
    parser.add_argument("--ranks", type=int, default=1, help="tensor parallel ranks of a target")
    parser.add_argument("--only", default="", help="only the parts whose name has this word")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    at_start = machine()
    settings = demo_settings(asked.targets)
    settings["router"]["select_timeout_s"] = SELECT_TIMEOUT_S
    settings["speculator"]["replicas"] = asked.speculators
    settings["target"]["tensor_parallel"] = asked.ranks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(settings))
        served = skim_serve(config, folder)
        try:
            served.await_ready()
            served.join_ray()
            killed = Killed(served, folder)
            await_whole(killed, BACK_S)
            found = measure(killed, asked)
            ray.shutdown()
        finally:
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    told = {key: value for key, value in found.items() if key not in ("kills", "wrong")}
    print(f"{told}; {len(found['kills'])} kills; wrong: {found['wrong'][:3]}")
    if asked.out:
        sizes = f"--speculators {asked.speculators} --targets {asked.targets} --ranks {asked.ranks}"
        command = f"python -m tests.soak.lost_parts --streams {asked.streams} {sizes} --seed {asked.seed}"
        write_json(asked.out, {"command": command, "machine": at_start, **found})
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
