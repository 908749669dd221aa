"""Overload over HTTP: what is served, what is refused and how soon, at multiples of the sustainable rate.

Open loop: requests arrive by a Poisson process, however slow the answers are. The engines are mocks whose target reads
one prompt after the other in a fixed time, so the sustainable rate is known. HTTP, Ray, the router with its admission
and the calls to the pools are real.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.mock_deployment import NAME, mock_deployment
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.serve.deployment import deployed
from skim_common.errors import SkimError
from skim_common.models.source import public_name

WARM_UPS = 20
"""Requests, one after the other, before anything is measured: the router learns the time of a prompt."""
REFUSED = 429


@dataclass(frozen=True)
class RefusalSettings:
    """prefill_ms: of a prompt in the target, which reads one at a time. max_wait_s: `router.max_wait_s`. loads:
    multiples of the sustainable rate. seconds: of each load; requests that arrive in its first fifth are not counted.
    """

    target: str
    speculator: str
    prefill_ms: float = 100.0
    decode_ms: float = 5.0
    prompt_words: int = 200
    answer_tokens: int = 4
    max_wait_s: float = 2.0
    loads: tuple[float, ...] = (1.0, 2.0, 3.0)
    seconds: float = 30.0
    seed: int = 0

    @property
    def sustainable(self) -> float:
        """Requests per second that the target can read."""
        return 1e3 / self.prefill_ms


@dataclass(frozen=True, slots=True)
class Ended:
    """One request. ms: from just before it was sent to the last byte of its answer or refusal."""

    status: int
    ms: float


def run(settings: RefusalSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: what became of the requests at each load. `ratio`: requests served per second at the largest
    load, divided by the most at any. Raises SkimError.
    """
    began = machine()
    options = {"prefill_ms": settings.prefill_ms, "decode_ms": settings.decode_ms, "one_at_a_time": True}
    config = mock_deployment(
        settings.target,
        settings.speculator,
        {"target": options},
        max_wait_s=settings.max_wait_s,
        speculative_prefill=False,
    )
    progress("starting", 0.0)
    with deployed(config, progress=lambda line: None) as url:
        rows = asyncio.run(_measure(settings, f"{url}/v1/chat/completions", progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    served = [row["served_per_s"] for row in rows]
    return {
        "machine": began,
        "settings": asdict(settings) | names,
        "sustainable": settings.sustainable,
        "rows": rows,
        "ratio": served[-1] / max(served),
    }


async def _measure(settings: RefusalSettings, url: str, progress: Progress) -> list[dict[str, Any]]:
    timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for number in range(WARM_UPS):
            if (await _ask(session, url, _body(settings, f"warm-up {number}"))).status != 200:
                raise SkimError("a request on the idle deployment was not answered: run `skim serve` to see why")
        rows = []
        for index, load in enumerate(settings.loads):
            progress(f"{load:g} times the sustainable rate", index / len(settings.loads))
            ends = await _offer(session, url, settings, load)
            rows.append(row(load, settings, ends))
        return rows


async def _offer(session: aiohttp.ClientSession, url: str, settings: RefusalSettings, load: float) -> list[Ended]:
    """Send requests at this load, and wait for all of them; those that count."""
    draw, loop = random.Random(settings.seed), asyncio.get_running_loop()
    began, at = loop.time(), 0.0
    tasks: list[asyncio.Task[Ended]] = []
    uncounted = 0
    while (at := at + draw.expovariate(load * settings.sustainable)) < settings.seconds:
        await asyncio.sleep(began + at - loop.time())
        uncounted += at < settings.seconds / 5
        body = _body(settings, f"load {load} request {len(tasks)}")
        tasks.append(asyncio.create_task(_ask(session, url, body)))
    return (await asyncio.gather(*tasks))[uncounted:]


def _body(settings: RefusalSettings, begin: str) -> bytes:
    message = {"role": "user", "content": f"{begin} " + "word " * settings.prompt_words}
    body = {"model": NAME, "messages": [message], "max_tokens": settings.answer_tokens, "ignore_eos": True}
    return json.dumps(body).encode()


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> Ended:
    began = time.perf_counter()
    try:
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    return Ended(status, 1e3 * (time.perf_counter() - began))


def row(load: float, settings: RefusalSettings, ends: Sequence[Ended]) -> dict[str, Any]:
    """What became of the counted requests at one load. failed: neither served nor refused."""
    served = [end.ms for end in ends if end.status == 200]
    refused = [end.ms for end in ends if end.status == REFUSED]
    return {
        "load": load,
        "rate": load * settings.sustainable,
        "sent": len(ends),
        "served": len(served),
        "refused": len(refused),
        "failed": len(ends) - len(served) - len(refused),
        "served_per_s": len(served) / (0.8 * settings.seconds),
        "answer_ms": _summary(served),
        "refusal_ms": _summary(refused),
    }


def _summary(times: Sequence[float]) -> dict[str, float] | None:
    if not times:
        return None
    p95 = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"median": statistics.median(times), "p95": p95, "max": max(times)}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, and the ratio."""
    settings = result["settings"]
    return (
        f"Chat requests over HTTP at a fixed rate (Poisson), {settings['seconds']:g} s for each load, the first fifth "
        f"not counted; one router with `max_wait_s: {settings['max_wait_s']:g}`. The engines are mocks: the target "
        f"reads one prompt after the other, in {settings['prefill_ms']:g} ms: {result['sustainable']:.1f} requests/s "
        "are sustainable. The times are those of the client, of whole answers and of refusals (429). Served per second "
        f"at {settings['loads'][-1]:g} times the sustainable rate, divided by the most at any load: "
        f"{result['ratio']:.2f}."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per load."""
    columns = ["load", "sent", "served", "refused", "failed", "served/s"]
    columns += ["answer ms: median", "p95", "max", "refusal ms: median", "p95", "max"]
    rows = []
    for found in result["rows"]:
        counts = [str(found[name]) for name in ("sent", "served", "refused", "failed")]
        times = [cell for name in ("answer_ms", "refusal_ms") for cell in _cells(found[name])]
        rows.append([f"{found['load']:g}", *counts, f"{found['served_per_s']:.1f}", *times])
    return columns, rows


def _cells(times: dict[str, float] | None) -> list[str]:
    return ["-"] * 3 if times is None else [f"{times[name]:.0f}" for name in ("median", "p95", "max")]


def plot(result: dict[str, Any], path: Path) -> None:
    """Served and refused requests per second by load, and the time to a refusal."""
    loads = [found["load"] for found in result["rows"]]
    seconds = 0.8 * result["settings"]["seconds"]
    with plots.figure(path, result, panels=2, height=3.8) as [rates, times]:
        for name in ("served", "refused"):
            rates.plot(loads, [found[name] / seconds for found in result["rows"]], label=name)
        rates.axhline(result["sustainable"], color="#555555", linestyle=":", label="sustainable")
        rates.set(xlabel="load, multiples of the sustainable rate", ylabel="requests/s", ylim=(0, None))
        for name in ("median", "p95", "max"):
            found = [(one["load"], one["refusal_ms"][name]) for one in result["rows"] if one["refusal_ms"]]
            times.plot(*zip(*found, strict=True) if found else ([], []), label=name)
        times.set(xlabel="load, multiples of the sustainable rate", ylabel="ms to a refusal", ylim=(0, None))
        rates.legend()
        times.legend()
