"""What the router, Ray and the wire add to one request, against calling the same engines from this process.

*in_process*: the prompt's token ids to the speculator engine and what it keeps to the target engine, as `skim
select` and `skim generate` do; nothing is tokenized there. *skim_ids*: the same ids over HTTP (`/v1/completions`)
through the router and both pools, so that the difference is router, Ray and wire alone. *skim*: the same prompts as
chat requests, which the router also renders and tokenizes. Each side has engines of its own with equal settings. They
live through the whole run and take turns, prompt by prompt, so that what is added is the difference of two neighbours.
Decoding is not speculated: each token is then one step of every part on its way, which is the dearest case for the
wire.

The same with mock engines, whose answers come at once, shows the way alone. In the dense rows, *ray_serve_llm* is the
target behind `ray.serve.llm`, asked for the same prompts; it is a stock engine (see `benchmarks.servers.SETTLE_S`).
"""

import asyncio
import os
import statistics
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks import plots
from benchmarks.chat_client import Timed, ask
from benchmarks.in_process import ChatPrompt, InProcess, unseen_prompts
from benchmarks.machine import machine
from benchmarks.overhead_parts import WAY, added, explained, parts_table
from benchmarks.progress import Progress, silent
from benchmarks.ray_llm import APP_NAME, ray_llm
from benchmarks.servers import BLOCK_SIZES, SETTLE_S, engine_options
from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from cluster.in_process.async_pair import AsyncPair, EngineSettings
from cluster.serve.deployment import deployed
from cluster.serve.preflight import free_port
from kv_transfer.environment import CORES, KEPT_HEAP

CONCURRENCY = (1, 8, 32)
_DENSE_CONCURRENCY = (1, 8)  # a wave of 32 whole prompts, three ways, takes minutes on two cores

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_NAME = "bench"
_TITLES = {"skim_ids": "skim, token ids", "ray_serve_llm": "ray.serve.llm"}
# Waves that do not count, by their size: the first ones, before all engines are warm.
_WARM_UPS = {1: 3, 8: 1}


@dataclass(frozen=True)
class OverheadSettings:
    """requests: per row and way, at least two waves of them. ray_llm: with the second baseline."""

    target: str
    speculator: str
    prompt_tokens: int = 2048
    answer_tokens: int = 16
    keep_rate: float = 0.2
    requests: int = 24
    seed: int = 0
    ray_llm: bool = True


Way = Callable[[ChatPrompt, bool], Awaitable[Timed]]


def run(settings: OverheadSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: per engine, mode, streaming or not, and concurrency, the ways' times and what each adds to
    in_process. `parts`: where the time to the first token goes at concurrency 1. Raises SkimError.
    """
    began = machine()
    rows: list[dict[str, Any]] = []
    parts: dict[str, Any] = {}
    refused = ""
    for kind in ("vllm", "mock"):
        with ExitStack() as stack:
            progress(f"starting a deployment on {kind} engines", len(parts) / 2)
            url = stack.enter_context(deployed(_deployment(settings, kind), progress=lambda line: None))
            baseline = None
            if kind == "vllm" and settings.ray_llm:
                try:
                    options, environment = _engine_options(settings, "target"), {**_environment("target"), **KEPT_HEAP}
                    route = stack.enter_context(ray_llm(settings.target, options, environment))
                    baseline = f"{url}{route}{_CHAT}"
                except Exception as error:  # a baseline of others' making that does not run is a result too
                    refused = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]:.300}"
            more = asyncio.run(_measure(settings, kind, url, baseline, progress))
        rows += more["rows"]
        parts[kind] = more["parts"]
    names = {"target": Path(settings.target).name, "speculator": Path(settings.speculator).name}
    result = {"machine": began, "settings": vars(settings) | names, "rows": rows, "parts": parts}
    return result | ({"ray_serve_llm_failed": refused} if refused else {})


def describe(result: dict[str, Any]) -> str:
    """What was measured, and where the time to the first token of one request goes."""
    settings = result["settings"]
    lines = [
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, prompts of {settings['prompt_tokens']} "
        f"tokens, answers of {settings['answer_tokens']}, keep rate {settings['keep_rate']}, {settings['requests']} "
        "requests per row and way. Added: the median of the differences to the same prompts in-process (quartiles), "
        'where engines get token ids. "skim, token ids" gets these too: router, Ray and wire alone. "skim" gets chat '
        "requests and tokenizes them."
    ]
    if "ray_serve_llm_failed" in result:
        lines.append(f"ray.serve.llm did not run: {result['ray_serve_llm_failed']}.")
    for kind, parts in result["parts"].items():
        added_ms = ", ".join(f"{row['part'].replace('_', ' ')} {row['added_ms']:.1f}" for row in parts)
        lines.append(
            f"Added to a chat request's first token by part, 1 at a time, {kind} engines, median ms: {added_ms}."
        )
    return "\n\n".join(lines)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one for each way beside in_process."""
    columns = ["engines", "prompt", "answer", "at a time", "way", "first token in-process, ms", "first token, ms"]
    columns += ["added ms", "x in-process", "added to the end ms", "ms per token, in-process"]
    rows = []
    for row in result["rows"]:
        base = row["ways"]["in_process"]
        for way, difference in row["added"].items():
            taken, first, end = row["ways"][way], difference["first_ms"], difference["end_ms"]
            cells = [row["engine"], row["mode"], "streamed" if row["stream"] else "whole", str(row["concurrency"])]
            cells.append(_TITLES.get(way, way))
            cells += [f"{base['first_ms']:.1f}", f"{taken['first_ms']:.1f}", _spread(first), f"{first['ratio']:.2f}"]
            cells += [_spread(end), f"{taken['ms_per_token']:.2f}, {base['ms_per_token']:.2f}"]
            rows.append(cells)
    return columns, rows


def _spread(difference: dict[str, float]) -> str:
    return f"{difference['median']:.1f} ({difference['low']:.1f} to {difference['high']:.1f})"


def plot(result: dict[str, Any], path: Path) -> None:
    """The parts that one request gains on its way, stacked; and what is added by concurrency."""
    with plots.figure(path, result, panels=2, height=4.2) as [parts, lines]:
        for index, (kind, rows) in enumerate(result["parts"].items()):
            left = 0.0
            for colour, row in zip(plots.COLOURS, [row for row in rows if row["part"] in WAY], strict=False):
                label = row["part"].replace("_", " ") if index == 0 else None
                parts.barh(f"{kind} engines", row["added_ms"], left=left, color=colour, label=label)
                left += row["added_ms"]
        parts.set(xlabel="added ms to the first token, 1 at a time", title="The way of one request")
        parts.grid(axis="y", visible=False)
        parts.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=9, columnspacing=1)
        series: dict[str, list[tuple[int, float]]] = {}
        for row in result["rows"]:
            for way, difference in row["added"].items():
                if row["stream"]:
                    name = f"{_TITLES.get(way, way)}, {row['mode']}, {row['engine']}"
                    series.setdefault(name, []).append((row["concurrency"], difference["first_ms"]["median"]))
        for name, points in series.items():
            lines.plot(*zip(*sorted(points), strict=True), label=name)
        lines.set(xlabel="requests at a time", ylabel="added ms", title="By concurrency", xscale="log")
        lines.set_yscale("symlog", linthresh=10)  # noise of the engines may make it negative
        lines.set_xticks(CONCURRENCY, labels=map(str, CONCURRENCY), minor=False)
        lines.minorticks_off()
        lines.margins(x=0.08, y=0.08)
        lines.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=9, columnspacing=1)


def _deployment(settings: OverheadSettings, kind: str) -> DeploymentConfig:
    pools: dict[str, Any] = {}
    for pool in ("target", "speculator"):
        pools |= {
            f"{pool}.model": Path(getattr(settings, pool)),
            f"{pool}.engine": kind,
            f"{pool}.env": _environment(pool),
        }
        # Little is set aside, so that the second baseline finds room.
        pools |= {f"{pool}.cpus_per_replica": 0.1, f"{pool}.engine_options": _engine_options(settings, pool, kind)}
    router = {"router.port": free_port(), "router.cpus": 0.1, "served_model_name": _NAME, "decode.method": "none"}
    return config_from_flags(None, {**pools, **router})


def _environment(pool: str) -> dict[str, str]:
    """Half of the cores for each pool's engines, on every side."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    own = cores[:half] if pool == "speculator" else cores[half:]
    return {CORES: ",".join(map(str, own or cores)), "VLLM_CPU_KVCACHE_SPACE": "1"}


def _engine_options(settings: OverheadSettings, pool: str, kind: str = "vllm") -> dict[str, Any]:
    """For KV caches that hold every prompt that is there at a time."""
    longest = 2 * settings.prompt_tokens
    if kind != "vllm":
        return {"max_model_len": longest}
    held = (max(CONCURRENCY) + 2) * (settings.prompt_tokens + settings.answer_tokens + BLOCK_SIZES[pool])
    return engine_options(longest, held, block_size=BLOCK_SIZES[pool])


async def _measure(
    settings: OverheadSettings, kind: str, url: str, baseline: str | None, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """All rows of one kind of engine, and the parts of a request."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600), connector=aiohttp.TCPConnector(limit=0))
        )
        halves = {
            pool: EngineSettings(
                getattr(settings, pool), kind, _engine_options(settings, pool, kind), environment=_environment(pool)
            )
            for pool in ("speculator", "target")
        }
        pair = AsyncPair(speculator=halves["speculator"], target=halves["target"])
        stack.push_async_callback(pair.close)
        engines = InProcess(pair, settings.keep_rate, settings.answer_tokens)
        chat, options = url + _CHAT, {"keep_rate": settings.keep_rate}
        speculative: dict[str, Way] = {
            "in_process": engines.speculative,
            "skim": _client(session, chat, _NAME, settings, speculative_prefill=options),
        }
        ids = {"skim_ids": _ids_client(session, url + _COMPLETIONS, settings)}
        dense: dict[str, Way] = {
            "in_process": engines.dense,
            "skim": _client(session, chat, _NAME, settings, speculative_prefill=False),
        }
        if baseline is not None:
            dense["ray_serve_llm"] = _client(session, baseline, APP_NAME, settings)
        cases = [("speculative", stream, 1, speculative | ids) for stream in (True, False)]
        cases += [("speculative", True, size, speculative) for size in CONCURRENCY[1:]]
        if kind == "vllm":
            cases += [("dense", True, size, dense) for size in _DENSE_CONCURRENCY]
        prompts = unseen_prompts(settings.target, settings.prompt_tokens, settings.seed)
        rows, parts = [], []
        for index, (mode, stream, size, ways) in enumerate(cases):
            done = (0 if kind == "vllm" else 0.75) + index / len(cases) * (0.75 if kind == "vllm" else 0.25)
            progress(f"{kind}, {mode}, {'' if stream else 'not '}streaming, {size} at a time", done)
            times = await _take_turns(ways, prompts, size, stream, settings.requests)
            about = {"engine": kind, "mode": mode, "stream": stream, "concurrency": size}
            rows.append(about | {"ways": {way: _summary(taken) for way, taken in times.items()}} | added(times))
            if mode == "speculative" and stream and size == 1:
                through = [await explained(session, chat, timed) for timed in times["skim"]]
                parts = parts_table(times["in_process"], through)
    return {"rows": rows, "parts": parts}


async def _take_turns(
    ways: Mapping[str, Way], prompts: Iterator[ChatPrompt], size: int, stream: bool, requests: int
) -> dict[str, list[Timed]]:
    """Each wave of `size` prompts at once, one way after the other; times by way, in the prompts' order."""
    times: dict[str, list[Timed]] = {name: [] for name in ways}
    warm_ups = _WARM_UPS.get(size, 0)
    for wave in range(warm_ups + max(2, -(-requests // size))):
        batch = [next(prompts) for _ in range(size)]
        for name, way in ways.items():
            taken = await asyncio.gather(*(way(prompt, stream) for prompt in batch))
            if wave >= warm_ups:
                times[name] += taken
            if name == "ray_serve_llm":
                await asyncio.sleep(SETTLE_S)
    return times


def _summary(times: list[Timed]) -> dict[str, float]:
    first, end = ([getattr(timed, name) for timed in times] for name in ("first_ms", "end_ms"))
    tokens = [(timed.end_ms - timed.first_ms) / max(timed.tokens - 1, 1) for timed in times]
    return {
        "requests": len(times),
        "first_ms": statistics.median(first),
        "first_p90_ms": float(np.percentile(first, 90)),
        "end_ms": statistics.median(end),
        "ms_per_token": statistics.median(tokens),
    }


def _client(session: aiohttp.ClientSession, url: str, model: str, settings: OverheadSettings, **fields: Any) -> Way:
    """Chat requests."""

    async def way(prompt: ChatPrompt, stream: bool) -> Timed:
        return await ask(session, url, _body(settings, stream, model=model, messages=prompt.messages, **fields))

    return way


def _ids_client(session: aiohttp.ClientSession, url: str, settings: OverheadSettings) -> Way:
    """Completions of the same prompt's token ids, with the same of them protected."""

    async def way(prompt: ChatPrompt, stream: bool) -> Timed:
        options = {"keep_rate": settings.keep_rate, "protected_spans": prompt.rendered.protected.tolist()}
        # The same engines have just read this prompt as a chat: salted, so that they read it again.
        fields = {
            "prompt": prompt.rendered.token_ids.tolist(),
            "cache_salt": uuid.uuid4().hex,
            "speculative_prefill": options,
        }
        return await ask(session, url, _body(settings, stream, model=_NAME, **fields))

    return way


def _body(settings: OverheadSettings, stream: bool, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": settings.answer_tokens, "temperature": 0, "ignore_eos": True, "stream": stream, **fields}
