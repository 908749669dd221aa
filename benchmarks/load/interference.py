"""What running streams feel of others' cold prompts: Skim and stock vLLM with several sizes of chunked prefill.

In each round, every system decodes some streams, alone at first. Then cold prompts arrive together, until each has its
first token. The systems are up at the same time and take turns. Measured are the tokens of the streams and the times
between two messages of a stream, which is what a client sees: before the cold prompts and while they are read.

A time between two messages counts where any part of it lies, so the long pause at the end of a read counts too. Nothing
is drafted, as prompts are random. The first round, in which the caches are touched for the first time, does not count.

Cores: Skim's two engines can have cores of their own. A stock server has the cores of both, so both systems compute
with the same number of cores. Router, Ray, HTTP and this client run on all cores of the machine, beside the engines.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.chat_client import ask
from benchmarks.harness.models import random_prompt
from benchmarks.harness.servers import MODEL, SETTLE_S, skim_config, stock_server
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import in_words, spread
from cluster.serve.deployment import deployed
from demo_models.answers import read_event
from skim_common.errors import SkimError
from skim_common.models.source import local_folder, public_name

PHASES = ("before", "during")
STREAM_PROMPT = 64
"""Tokens of the prompt of a stream."""


@dataclass(frozen=True)
class InterferenceSettings:
    """streams: decode in each round; prompts: arrive together, of `prompt_tokens` each. before_s: seconds that are
    measured before. chunks: `max_num_batched_tokens` of the stock servers, one server for each. rounds: after the one
    that does not count. target_cores, speculator_cores: of Skim's engines; empty: all cores for both. shapes: what the
    models are, for random weights.
    """

    target: str
    speculator: str
    streams: int = 1
    prompts: int = 2
    prompt_tokens: int = 8192
    keep_rate: float = 0.2
    before_s: float = 5.0
    chunks: tuple[int, ...] = (512, 2048, 8192)
    rounds: int = 3
    target_cores: tuple[int, ...] = ()
    speculator_cores: tuple[int, ...] = ()
    dtype: str = "float32"
    seed: int = 0
    shapes: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream that has tokens. at: seconds."""

    at: float
    tokens: int


def run(settings: InterferenceSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; see `summary`. Raises SkimError."""
    began = machine()
    # A stream must not end while the cold prompts are read, so it may become as long as one of them.
    longest = settings.prompt_tokens + STREAM_PROMPT + 128
    held = (settings.streams + settings.prompts + 1) * longest
    cores = {"target": settings.target_cores, "speculator": settings.speculator_cores}
    both = sorted({*settings.target_cores, *settings.speculator_cores})
    target, dtype = Path(local_folder(settings.target, weights=True)), settings.dtype
    with ExitStack() as stack:
        urls = {}
        for chunk in settings.chunks:
            progress(f"starting stock vLLM with chunks of {chunk}", 0.0)
            server = stock_server(target, longest, held, dtype=dtype, chunk_tokens=chunk, cores=both)
            urls[f"stock {chunk}"] = stack.enter_context(server)
        progress("starting skim", 0.0)
        config = skim_config(target, Path(settings.speculator), longest, held, dtype=dtype, cores=cores, method="none")
        urls["skim"] = stack.enter_context(deployed(config, progress=lambda line: None))
        rounds = asyncio.run(measured_rounds(settings, urls, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": asdict(settings) | names, "rows": summary(rounds)}


async def measured_rounds(
    settings: InterferenceSettings,
    urls: Mapping[str, str],
    progress: Progress,
    partial: Callable[[list[dict[str, dict[str, Any]]]], None] = lambda rounds: None,
) -> list[dict[str, dict[str, Any]]]:
    """What each round that counts measured, by system. urls: by system; Skim's begin with `skim`. partial: called
    after each of these rounds.
    """
    rounds = []
    timeout, connector = aiohttp.ClientTimeout(total=1800), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for number in range(settings.rounds + 1):
            measured = {}
            # In turn, from another one in each round.
            order = list(urls)[number % len(urls) :] + list(urls)[: number % len(urls)]
            for index, system in enumerate(order):
                progress(f"round {number}: {system}", (number + index / len(urls)) / (settings.rounds + 1))
                options = {"enabled": "always", "keep_rate": settings.keep_rate} if _is_skim(system) else None
                measured[system] = await measure(session, urls[system], settings, number, options)
                await asyncio.sleep(SETTLE_S)
            rounds.append({system: measured[system] for system in urls})
            if number:
                partial(rounds[1:])
    return rounds[1:]


async def measure(
    session: aiohttp.ClientSession,
    url: str,
    settings: InterferenceSettings,
    number: int,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One round of one system: `phase` before and during the reads, and the cold prompts' milliseconds to their first
    token. options: `speculative_prefill` of the cold prompts; None for a stock server."""
    dense = {} if options is None else {"speculative_prefill": False}
    reduced = {} if options is None else {"speculative_prefill": options}
    seen: list[list[Message]] = [[] for _ in range(settings.streams)]
    streams = [
        asyncio.create_task(_stream(session, url, _body(settings, STREAM_PROMPT, number, index) | dense, messages))
        for index, messages in enumerate(seen)
    ]
    try:
        while not all(seen):
            await _still_running(streams, 0.05)
        start = time.perf_counter()
        await _still_running(streams, settings.before_s)
        arrived = time.perf_counter()
        cold = [
            ask(session, f"{url}/v1/completions", _body(settings, settings.prompt_tokens, number, index) | reduced)
            for index in range(settings.prompts)
        ]
        first_ms = [timed.first_ms for timed in await asyncio.gather(*cold)]
        end = arrived + max(first_ms) / 1e3
        # The pause that the end of the last read cut short is over with the next message.
        while not all(messages[-1].at > end for messages in seen):
            await _still_running(streams, 0.02)
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return {"before": phase(seen, start, arrived), "during": phase(seen, arrived, end), "first_ms": first_ms}


async def _still_running(streams: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait. Raises SkimError if a stream ends meanwhile."""
    done, _ = await asyncio.wait(streams, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for stream in done:
        stream.result()
        raise SkimError("a stream ended before the cold prompts were read: take longer prompts or fewer of them")


def _body(settings: InterferenceSettings, tokens: int, *seed: int) -> dict[str, Any]:
    """A stream (a short prompt, whose answer is as long as the context allows) or a cold prompt."""
    return {
        "model": MODEL,
        "prompt": random_prompt(tokens, settings.seed, *seed).tolist(),
        "max_tokens": settings.prompt_tokens if tokens == STREAM_PROMPT else 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def _stream(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], messages: list[Message]) -> None:
    """Read a stream until its end, and note its messages."""
    headers, tokens = {"content-type": "application/json"}, 0
    async with session.post(f"{url}/v1/completions", data=json.dumps(body), headers=headers) as response:
        if response.status != 200:
            raise SkimError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            event = read_event(line)
            if event is not None and event.get("usage") and event["usage"]["completion_tokens"] > tokens:
                new, tokens = event["usage"]["completion_tokens"] - tokens, event["usage"]["completion_tokens"]
                messages.append(Message(time.perf_counter(), new))


def phase(streams: Sequence[Sequence[Message]], start: float, end: float) -> dict[str, float]:
    """Tokens per second of a stream on average, and milliseconds between two messages of a stream: the 99th percentile
    (nearest rank) and the longest. Of the messages in (start, end], and the pauses that overlap with it."""
    tokens = sum(one.tokens for messages in streams for one in messages if start < one.at <= end)
    pauses = sorted(
        1e3 * (after.at - before.at)
        for messages in streams
        for before, after in pairwise(messages)
        if after.at > start and before.at < end
    )
    pauses = pauses or [1e3 * (end - start)]
    p99 = pauses[math.ceil(0.99 * len(pauses)) - 1]
    return {"tokens_per_s": tokens / (end - start) / len(streams), "p99_ms": p99, "longest_ms": pauses[-1]}


def summary(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each system: spreads over the rounds. share: tokens per second during the reads, divided by those
    before, formed within a round. first_ms: median of the cold prompts of a round."""
    rows = []
    for system in rounds[0]:
        found = [measured[system] for measured in rounds]
        row: dict[str, Any] = {"system": system}
        for name in PHASES:
            row[name] = {key: spread(one[name][key] for one in found) for key in found[0][name]}
        row["share"] = spread(one["during"]["tokens_per_s"] / one["before"]["tokens_per_s"] for one in found)
        row["first_ms"] = spread(statistics.median(one["first_ms"]) for one in found)
        rows.append(row)
    return sorted(rows, key=lambda row: not _is_skim(row["system"]))


def _is_skim(system: str) -> bool:
    return system.startswith("skim")


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, and what is kept of the streams' speed."""
    settings = result["settings"]
    models = settings["shapes"] or f" `{settings['target']}` and `{settings['speculator']}`"
    cores = "All engines have all cores."
    if settings["target_cores"]:
        own = [len(settings[f"{pool}_cores"]) for pool in ("target", "speculator")]
        total = len({*settings["target_cores"], *settings["speculator_cores"]})
        cores = f"Cores: {own[0]} for Skim's target, {own[1]} for its speculator, {total} for a stock server."
    shares = ", ".join(f"{row['system']} {in_words(row['share'])}" for row in result["rows"])
    return (
        f"Target and speculator{models} in {settings['dtype']}: {settings['streams']} stream(s) decode while "
        f"{settings['prompts']} cold prompts of {settings['prompt_tokens']} tokens arrive together, keep rate "
        f"{settings['keep_rate']}, nothing drafted; {settings['rounds']} rounds. Stock vLLM reads in chunks of the "
        f"given size. {cores} Router, Ray, HTTP and the client run on the same machine. Tokens per second of "
        f"a stream while the prompts are read, divided by those before: {shares}."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per system: medians, and the range of the share."""
    columns = ["system", "tokens/s before", "during", "during / before", "p99 ms before", "during", "longest ms"]
    rows = []
    for row in result["rows"]:
        before, during = (row[name] for name in PHASES)
        speeds = [f"{one['tokens_per_s']['median']:.1f}" for one in (before, during)]
        pauses = [f"{one['p99_ms']['median']:.0f}" for one in (before, during)]
        longest, first = f"{during['longest_ms']['median']:.0f}", f"{row['first_ms']['median'] / 1e3:.1f}"
        rows.append([row["system"], *speeds, in_words(row["share"]), *pauses, longest, first])
    return [*columns, "cold first token s"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Tokens per second and the 99th percentile of the pauses, before and during the reads, by system."""
    systems = [row["system"] for row in result["rows"]]
    with plots.figure(path, result, panels=2, height=3.6) as axes:
        kinds = (("tokens_per_s", "tokens/s of a stream"), ("p99_ms", "ms between messages, 99th percentile"))
        for axis, (key, label) in zip(axes, kinds, strict=True):
            for offset, name in enumerate(PHASES):
                places = [place + 0.4 * offset for place in range(len(systems))]
                values = [row[name][key]["median"] for row in result["rows"]]
                axis.bar(places, values, width=0.38, label=f"{name} the reads")
            axis.set_xticks([place + 0.2 for place in range(len(systems))], labels=systems)
            axis.set_ylabel(label)
            axis.grid(axis="x", visible=False)
        plots.log_values(axes[1])
        axes[0].legend()
