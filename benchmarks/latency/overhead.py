"""Latency that the router, Ray and the network add, compared with calling the same engines in this process.

Request paths:

- *in_process*: the prompt's token ids go to the speculator engine, and what it keeps goes to the target engine, as in
  `skim.Pair`. Nothing is tokenized.
- *skim_ids*: the same token ids go over HTTP (`/v1/completions`) through the router and both pools. The difference to
  in_process is router, Ray and network alone.
- *skim*: the same prompts as chat requests, which the router also renders and tokenizes.
- *ray_serve_llm*: the same chat requests go to the target behind `ray.serve.llm`, in the dense rows only. It runs a
  stock engine (see `benchmarks.harness.servers.SETTLE_S`).

In-process calls and deployments have their own engines with equal settings. All of them stay up during the whole run
and take turns after each wave of prompts, so an added time is the difference of two neighbouring measurements. Drafting
is off, so that each token is a step of its own through all parts, which is the most expensive case for the network. The
same is measured with mock engines, which answer at once; there, only the path itself takes time.
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

from benchmarks.harness.chat_client import Timed, ask
from benchmarks.harness.in_process import ChatPrompt, InProcess, unseen_prompts
from benchmarks.harness.ray_llm import APP_NAME, ray_llm
from benchmarks.harness.servers import BLOCK, SETTLE_S, STOCK_BLOCK, engine_options
from benchmarks.latency.overhead_parts import added, explained, parts_table
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from cluster.serve.deployment import deployed
from demo_models.ports import free_port
from skim.engines import EngineSettings, PairEngines
from skim_common.environment import CORES, KEPT_HEAP
from skim_common.models.source import local_folder, public_name

CONCURRENCY = (1, 8, 32)
_DENSE_CONCURRENCY = (1, 8)  # 32 dense prompts on three paths take minutes on two cores

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_NAME = "bench"
FEWEST_WAVES = 4
"""Of a row: with fewer, one slow wave decides its medians."""

# Number of warm-up waves, by the number of requests in a wave.
_WARM_UPS = {1: 3, 8: 1}


@dataclass(frozen=True)
class OverheadSettings:
    """requests: number per row, but at least FEWEST_WAVES waves. ray_llm: also measure the path ray_serve_llm."""

    target: str
    speculator: str
    prompt_tokens: int = 2048
    answer_tokens: int = 16
    keep_rate: float = 0.2
    requests: int = 24
    seed: int = 0
    ray_llm: bool = True


Client = Callable[[ChatPrompt, bool], Awaitable[Timed]]
"""Sends one prompt over one request path. The flag is for streaming."""


def run(settings: OverheadSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each kind of engine, mode, streaming and concurrency, the times of each path (`paths`) and
    what each adds to in_process (`added`). `parts`: the parts of the time to first token at concurrency 1.

    Raises SkimError.
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
                    options, environment = (
                        _engine_options(settings, block=STOCK_BLOCK),
                        {**_environment("target"), **KEPT_HEAP},
                    )
                    route = stack.enter_context(
                        ray_llm(local_folder(settings.target, weights=True), options, environment)
                    )
                    baseline = f"{url}{route}{_CHAT}"
                except Exception as error:  # the baseline is not ours; that it does not run is a result too
                    refused = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]:.300}"
            more = asyncio.run(_measure(settings, kind, url, baseline, progress))
        rows += more["rows"]
        parts[kind] = more["parts"]
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    result = {"machine": began, "settings": vars(settings) | names, "rows": rows, "parts": parts}
    return result | ({"ray_serve_llm_failed": refused} if refused else {})


def _deployment(settings: OverheadSettings, kind: str) -> DeploymentConfig:
    pools: dict[str, Any] = {}
    for pool in ("target", "speculator"):
        pools |= {
            f"{pool}.model": Path(getattr(settings, pool)),
            f"{pool}.engine": kind,
            f"{pool}.env": _environment(pool),
            f"{pool}.start_probe": "off",
        }
        # Ray reserves little CPU for Skim, so that ray.serve.llm finds room.
        pools |= {f"{pool}.cpus_per_replica": 0.1, f"{pool}.engine_options": _engine_options(settings, kind)}
    # Without a keep-alive, the headers of each answer wait for their times.
    router = {"router.port": free_port(), "router.cpus": 0.1, "router.keep_alive_s": 0}
    how = {"served_model_name": _NAME, "decode.method": "none", "selection.selector": "speculator"}
    return config_from_flags(None, {**pools, **router, **how})


def _environment(pool: str) -> dict[str, str]:
    """Environment of a pool's engines: each pool has half of the cores, on every path."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    own = cores[:half] if pool == "speculator" else cores[half:]
    return {CORES: ",".join(map(str, own or cores)), "VLLM_CPU_KVCACHE_SPACE": "1"}


def _engine_options(settings: OverheadSettings, kind: str = "vllm", block: int = BLOCK) -> dict[str, Any]:
    """Options of an engine; its KV cache, in blocks of so many tokens, holds all prompts that run at the same time."""
    longest = 2 * settings.prompt_tokens
    if kind != "vllm":
        return {"max_model_len": longest}
    held = (max(CONCURRENCY) + 2) * (settings.prompt_tokens + settings.answer_tokens + block)
    return engine_options(longest, held, block_size=block)


async def _measure(
    settings: OverheadSettings, kind: str, url: str, baseline: str | None, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """All rows of one kind of engine, and the parts of a request."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600), connector=aiohttp.TCPConnector(limit=0))
        )
        pair = _pair(settings, kind)
        stack.push_async_callback(pair.close)
        cases = _cases(
            settings, kind, InProcess(pair, settings.keep_rate, settings.answer_tokens), session, url, baseline
        )
        prompts = unseen_prompts(settings.target, settings.prompt_tokens, settings.seed)
        rows, parts = [], []
        for index, (mode, stream, size, clients) in enumerate(cases):
            done = (0 if kind == "vllm" else 0.75) + index / len(cases) * (0.75 if kind == "vllm" else 0.25)
            progress(f"{kind}, {mode}, {'' if stream else 'not '}streaming, {size} at a time", done)
            times = await _take_turns(clients, prompts, size, stream, settings.requests)
            about = {"engine": kind, "mode": mode, "stream": stream, "concurrency": size}
            rows.append(about | {"paths": {path: _summary(taken) for path, taken in times.items()}} | added(times))
            if mode == "speculative" and stream and size == 1:
                through = [await explained(session, url + _CHAT, timed) for timed in times["skim"]]
                parts = parts_table(times["in_process"], through)
    return {"rows": rows, "parts": parts}


def _pair(settings: OverheadSettings, kind: str) -> PairEngines:
    """The engines of the path in_process."""
    halves = {
        pool: EngineSettings(
            getattr(settings, pool), kind, _engine_options(settings, kind), environment=_environment(pool)
        )
        for pool in ("speculator", "target")
    }
    return PairEngines(speculator=halves["speculator"], target=halves["target"])


def _cases(
    settings: OverheadSettings,
    kind: str,
    engines: InProcess,
    session: aiohttp.ClientSession,
    url: str,
    baseline: str | None,
) -> list[tuple[str, bool, int, dict[str, Client]]]:
    """Mode, streaming, concurrency and the clients by path, one entry per row.

    url: of the router. baseline: the chat endpoint of ray.serve.llm, or None.
    """
    chat, options = url + _CHAT, {"enabled": "always", "keep_rate": settings.keep_rate}
    speculative: dict[str, Client] = {
        "in_process": engines.speculative,
        "skim": _chat_client(session, chat, _NAME, settings, speculative_prefill=options),
    }
    ids = {"skim_ids": _ids_client(session, url + _COMPLETIONS, settings)}
    dense: dict[str, Client] = {
        "in_process": engines.dense,
        "skim": _chat_client(session, chat, _NAME, settings, speculative_prefill=False),
    }
    if baseline is not None:
        dense["ray_serve_llm"] = _chat_client(session, baseline, APP_NAME, settings)
    cases = [("speculative", stream, 1, speculative | ids) for stream in (True, False)]
    cases += [("speculative", True, size, speculative) for size in CONCURRENCY[1:]]
    if kind == "vllm":
        cases += [("dense", True, size, dense) for size in _DENSE_CONCURRENCY]
    return cases


async def _take_turns(
    clients: Mapping[str, Client], prompts: Iterator[ChatPrompt], size: int, stream: bool, requests: int
) -> dict[str, list[Timed]]:
    """Send each wave of `size` prompts at once, on one path after the other. Returns the times by path, in the order of
    the prompts.
    """
    times: dict[str, list[Timed]] = {path: [] for path in clients}
    warm_ups = _WARM_UPS.get(size, 0)
    for wave in range(warm_ups + max(FEWEST_WAVES, -(-requests // size))):
        batch = [next(prompts) for _ in range(size)]
        for path, client in clients.items():
            taken = await asyncio.gather(*(client(prompt, stream) for prompt in batch))
            if wave >= warm_ups:
                times[path] += taken
            if path == "ray_serve_llm":
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


def _chat_client(
    session: aiohttp.ClientSession, url: str, model: str, settings: OverheadSettings, **fields: Any
) -> Client:
    """Sends chat requests with these additional fields."""

    async def send(prompt: ChatPrompt, stream: bool) -> Timed:
        return await ask(session, url, _body(settings, stream, model=model, messages=prompt.messages, **fields))

    return send


def _ids_client(session: aiohttp.ClientSession, url: str, settings: OverheadSettings) -> Client:
    """Sends the prompt's token ids to /v1/completions, with the same tokens protected as in the chat request."""

    async def send(prompt: ChatPrompt, stream: bool) -> Timed:
        options: dict[str, Any] = {"enabled": "always", "keep_rate": settings.keep_rate}
        options["protected_spans"] = prompt.layout.protected.tolist()
        # The same engines have just read this prompt as a chat request; the salt makes them read it again.
        fields = {
            "prompt": prompt.rendered.token_ids.tolist(),
            "cache_salt": uuid.uuid4().hex,
            "speculative_prefill": options,
        }
        return await ask(session, url, _body(settings, stream, model=_NAME, **fields))

    return send


def _body(settings: OverheadSettings, stream: bool, **fields: Any) -> dict[str, Any]:
    if stream:
        fields["stream_options"] = {"include_usage": True}  # tells the number of tokens
    return {"max_tokens": settings.answer_tokens, "temperature": 0, "ignore_eos": True, "stream": stream, **fields}
