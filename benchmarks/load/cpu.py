"""CPU time of a chat request by process, with engines that answer at once.

Such engines leave the time of the path itself: HTTP, rendering and tokenizing, the calls to the pools, the stream back.
CPU time does not grow with the number of cores that are free, so it is comparable on a busy machine, unlike latency. It
tells how many requests a core can take.
"""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness.chat_client import Timed, ask
from benchmarks.harness.mock_deployment import NAME, mock_deployment
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.config.schema import DeploymentConfig
from cluster.serve.deployment import deployed
from demo_models.documents import make_document
from skim_common.models.source import public_name

PARTS = ("router", "speculator", "target", "front proxy", "rest of Ray")
"""The processes that are told apart. The rest of Ray works in the background too, however few requests there are."""

_WARM_UPS = 32


@dataclass(frozen=True)
class CpuSettings:
    """requests: per row. turns: requests of one conversation; each continues the one before. at_once: requests that
    run at the same time, one row for each number. routers: number of router replicas, one deployment for each.
    """

    target: str
    speculator: str
    prompt_tokens: int = 2048
    answer_tokens: int = 16
    keep_rate: float = 0.2
    requests: int = 256
    turns: int = 1
    at_once: tuple[int, ...] = (1, 32)
    routers: tuple[int, ...] = (1, 2)
    seed: int = 0


def run(settings: CpuSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each number of routers and of requests at once, `cpu_ms` of a request by part, and the
    median time to first token. Raises SkimError.
    """
    began, rows = machine(), list[dict[str, Any]]()
    for index, routers in enumerate(settings.routers):
        progress(f"starting {routers} router(s)", index / len(settings.routers))
        with deployed(_deployment(settings, routers), progress=lambda line: None) as url:
            rows += [{"routers": routers, **row} for row in asyncio.run(_measure(settings, url, progress))]
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": vars(settings) | names, "rows": rows}


def _deployment(settings: CpuSettings, routers: int) -> DeploymentConfig:
    options = {pool: {"max_model_len": 2 * settings.prompt_tokens} for pool in ("target", "speculator")}
    return mock_deployment(settings.target, settings.speculator, options, replicas=routers)


async def _measure(settings: CpuSettings, url: str, progress: Progress) -> list[dict[str, Any]]:
    """One row for each number of requests at once."""
    rows, chats = [], _conversations(settings)
    timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def send(chat: Sequence[Mapping[str, Any]]) -> list[Timed]:
            return [await ask(session, f"{url}/v1/chat/completions", body) for body in chat]

        for _ in range(0, _WARM_UPS, 4):
            await asyncio.gather(*(send(next(chats)) for _ in range(4)))
        for index, size in enumerate(settings.at_once):
            progress(f"{size} at a time", index / len(settings.at_once))
            waves = max(1, settings.requests // (size * settings.turns))
            todo = [[next(chats) for _ in range(size)] for _ in range(waves)]
            before, times = cpu_seconds(), list[Timed]()
            for wave in todo:
                times += [timed for chat in await asyncio.gather(*map(send, wave)) for timed in chat]
            row: dict[str, Any] = {"at_once": size, "cpu_ms": per_request(before, cpu_seconds(), len(times))}
            rows.append(row | {"first_ms": statistics.median(timed.first_ms for timed in times)})
    return rows


def _conversations(settings: CpuSettings) -> Iterator[list[dict[str, Any]]]:
    """Endless conversations about unseen documents, each as the bodies of its requests."""
    for number in count(settings.seed):
        messages = make_document(settings.prompt_tokens, number).messages
        bodies = []
        for turn in range(settings.turns):
            if turn:
                messages = [*messages, {"role": "assistant", "content": f"Answer {turn}."}]
                messages = [*messages, {"role": "user", "content": f"And what of number {turn}?"}]
            bodies.append(_body(settings, messages))
        yield bodies


def _body(settings: CpuSettings, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answer = {"max_tokens": settings.answer_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    options = {"enabled": "always", "keep_rate": settings.keep_rate}
    return {"model": NAME, "messages": messages, "speculative_prefill": options, **answer}


def cpu_seconds() -> dict[int, tuple[str, float]]:
    """Part and CPU seconds so far of each process that this one has started, by process id."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            used = process.cpu_times()
            found[process.pid] = part_of(" ".join(process.cmdline())), used.user + used.system
    return found


def part_of(command: str) -> str:
    """The part (PARTS) of a process, by its command line. Ray writes the deployment's name into it."""
    for part in PARTS[:3]:
        if f":{part}" in command and "ServeReplica" in command:
            return part
    return "front proxy" if "ProxyActor" in command else "rest of Ray"


def per_request(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], requests: int
) -> dict[str, float]:
    """Milliseconds of CPU time of one request by part. A process that came or went in between is left out."""
    spent: dict[str, float] = defaultdict(float, dict.fromkeys(PARTS, 0.0))
    for pid, (part, seconds) in after.items():
        if pid in before:
            spent[part] += 1e3 * (seconds - before[pid][1]) / requests
    return dict(spent)


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement."""
    settings = result["settings"]
    return (
        f"CPU time in ms of a chat request by process: prompts of {settings['prompt_tokens']} tokens, answers of "
        f"{settings['answer_tokens']} tokens, keep rate {settings['keep_rate']}, "
        f"{settings['requests']} requests per row, {settings['turns']} of each conversation. The engines are mocks: "
        "they select at random and answer at once, so that the tokens of an answer share a few messages."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per number of routers and of requests at once."""
    rows = []
    for row in result["rows"]:
        cells = [f"{row['cpu_ms'][part]:.1f}" for part in PARTS]
        total = sum(row["cpu_ms"][part] for part in PARTS[:-1])
        rows.append([str(row["routers"]), str(row["at_once"]), *cells, f"{total:.1f}", f"{row['first_ms']:.0f}"])
    return ["routers", "at a time", *PARTS, "sum without rest", "first token ms"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """A bar for each row, divided into the parts."""
    with plots.figure(path, result, height=3.6) as [bars]:
        for row in result["rows"]:
            left, label = 0.0, f"{row['routers']} router(s), {row['at_once']} at a time"
            for colour, part in zip(plots.COLOURS, PARTS[:-1], strict=False):
                name = part if row is result["rows"][0] else None
                bars.barh(label, row["cpu_ms"][part], left=left, color=colour, label=name)
                left += row["cpu_ms"][part]
        bars.set(xlabel="CPU ms of a request", title="CPU time by process")
        bars.grid(axis="y", visible=False)
        bars.legend()
