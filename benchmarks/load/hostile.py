"""Time to first token of well-behaved clients while others harm the server.

One deployment with mock engines, whose times are realistic. A measurement is a pair: without hostile clients, and with
one kind of them (`benchmarks.load.hostile_clients`, a process of its own). The kinds take turns in each round, so a
slow spell of the machine meets all of them, and the ratio of the two medians is taken within the pair. A pair without
hostile clients shows how much the ratio varies by itself.
"""

import asyncio
import json
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.harness.chat_client import ask
from benchmarks.harness.mock_deployment import NAME, mock_deployment
from benchmarks.load.hostile_clients import KINDS
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.serve.deployment import deployed
from demo_models.documents import make_document
from skim_common.errors import SkimError
from skim_common.models.source import public_name

NONE = "none"
"""The pair without hostile clients."""
READY_S = 30.0


@dataclass(frozen=True)
class HostileSettings:
    """clients: well-behaved ones, each with one request at a time. seconds: of each half of a pair. rounds: pairs of
    each kind. prefill_ms, latency_ms: of a prompt, in the target and in the speculator.
    """

    target: str
    speculator: str
    prompt_tokens: int = 2048
    answer_tokens: int = 8
    prefill_ms: float = 150.0
    latency_ms: float = 50.0
    clients: int = 4
    seconds: float = 4.0
    rounds: int = 4
    kinds: tuple[str, ...] = (NONE, *KINDS)
    seed: int = 0


def run(settings: HostileSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each kind, its `pairs` of medians in milliseconds, the `ratio` of each pair, and what the
    hostile clients were `answered`. Raises SkimError.
    """
    began = machine()
    config = mock_deployment(
        settings.target,
        settings.speculator,
        {
            "target": {"prefill_ms": settings.prefill_ms, "decode_ms": 10.0},
            "speculator": {"latency_ms": settings.latency_ms},
        },
    )
    progress("starting", 0.0)
    with deployed(config, progress=lambda line: None) as url:
        rows = asyncio.run(_measure(settings, url, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": asdict(settings) | names, "rows": rows}


async def _measure(settings: HostileSettings, url: str, progress: Progress) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {
        kind: {"kind": kind, "pairs": [], "answered": Counter[str]()} for kind in settings.kinds
    }
    bodies, port = _bodies(settings), urlsplit(url).port or 80
    timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for _ in range(8):
            await ask(session, f"{url}/v1/chat/completions", next(bodies))
        for number in range(settings.rounds):
            for index, kind in enumerate(settings.kinds):
                progress(kind, (number + index / len(settings.kinds)) / settings.rounds)
                calm = await _median_first_ms(session, url, settings, bodies)
                async with _hostile(kind, port, rows[kind]["answered"]):
                    harmed = await _median_first_ms(session, url, settings, bodies)
                rows[kind]["pairs"].append([calm, harmed])
    return [row | {"ratio": [harmed / calm for calm, harmed in row["pairs"]]} for row in rows.values()]


def _bodies(settings: HostileSettings) -> Iterator[dict[str, Any]]:
    """Endless requests about unseen documents."""
    answer = {"max_tokens": settings.answer_tokens, "ignore_eos": True, "stream": True}
    for number in count(settings.seed):
        messages = make_document(settings.prompt_tokens, number).messages
        yield {"model": NAME, "messages": messages, "speculative_prefill": "always", **answer}


async def _median_first_ms(
    session: aiohttp.ClientSession, url: str, settings: HostileSettings, bodies: Iterator[dict[str, Any]]
) -> float:
    """The median time to first token of the requests of some seconds. Raises SkimError if one is not answered."""
    loop = asyncio.get_running_loop()
    ends, times = loop.time() + settings.seconds, list[float]()

    async def client() -> None:
        while loop.time() < ends:
            times.append((await ask(session, f"{url}/v1/chat/completions", next(bodies))).first_ms)

    await asyncio.gather(*(client() for _ in range(settings.clients)))
    return statistics.median(times)


@asynccontextmanager
async def _hostile(kind: str, port: int, answered: Counter[str]) -> AsyncIterator[None]:
    """Hostile clients of this kind while the context lasts. Raises SkimError if they cannot connect."""
    if kind == NONE:
        yield
        return
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.load.hostile_clients", kind, str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            ready = await asyncio.wait_for(process.stdout.readline(), READY_S)
        except TimeoutError:
            ready = b""
        if ready.strip() != b"ready":
            raise SkimError(
                f"the hostile clients ({kind}) could not connect: are enough open files allowed (ulimit -n)?"
            )
        yield
        process.stdin.close()
        answered.update(json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement."""
    settings = result["settings"]
    return (
        f"Time to first token of {settings['clients']} well-behaved clients, prompts of {settings['prompt_tokens']} "
        f"tokens, {settings['seconds']:g} s without and {settings['seconds']:g} s with hostile clients, "
        f"{settings['rounds']} rounds in which the kinds take turns. The ratio is that of the two medians of one pair; "
        f"`{NONE}` shows how much it varies by itself. The engines are mocks: {settings['latency_ms']:g} ms in the "
        f"speculator and {settings['prefill_ms']:g} ms in the target. Clients, hostile clients and the server share "
        "the machine, so a kind that sends much also takes CPU time from the others."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per kind."""
    rows = []
    for row in result["rows"]:
        calm, harmed = (statistics.median(pair[half] for pair in row["pairs"]) for half in (0, 1))
        ratios = row["ratio"]
        answered = ", ".join(f"{status} ({count})" for status, count in sorted(row["answered"].items()))
        cells = [f"{calm:.0f}", f"{harmed:.0f}", f"{statistics.median(ratios):.2f}"]
        clients = KINDS[row["kind"]].clients if row["kind"] in KINDS else 0
        rows.append([row["kind"], str(clients), *cells, f"{min(ratios):.2f} to {max(ratios):.2f}", answered or "-"])
    return ["hostile clients", "how many", "calm ms", "harmed ms", "ratio", "of the rounds", "they were answered"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """The ratio of each round by kind."""
    with plots.figure(path, result, height=3.8) as [axes]:
        for place, row in enumerate(result["rows"]):
            axes.plot(row["ratio"], [place] * len(row["ratio"]), linestyle="", color=plots.COLOURS[0], marker="o")
        axes.axvline(1.0, color="#555555", linestyle=":")
        axes.set(xlabel="time to first token, with hostile clients / without", xlim=(0, None))
        axes.set_yticks(range(len(result["rows"])), [row["kind"] for row in result["rows"]])
        axes.invert_yaxis()
