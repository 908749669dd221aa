"""Replay of a trace: Skim and a stock vLLM server with its prefix cache, on the same cores and in the same KV memory.

The requests arrive at the trace's times, scaled to `seconds`, whether or not the earlier ones are answered. Prompts are
token ids to `/v1/completions` (`benchmarks.replay.trace`): a trace has no text, and so both systems get exactly the
sharing of the trace. Affinity and records depend on token ids, so they act as for chats; the question is unknown, so
the last tokens of a prompt count as the question. Answers are not part of later prompts, so they are cached in vain.

Both servers stay up and replay the trace one after the other, in alternating order; the ratio is
formed within a round. The memory of the stock server's KV cache is divided between Skim's two pools. Prompts are
random, so nothing is drafted, and the answers mean nothing. Before the first round every KV cache is filled once
(`benchmarks.harness.servers`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.chat_client import ask
from benchmarks.harness.models import random_prompt, usable_ids
from benchmarks.harness.servers import MODEL, SETTLE_S, skim_config, stock_server
from benchmarks.replay.mooncake import TRACE_BLOCK, TracedRequest, read_trace
from benchmarks.replay.results import Replayed, describe, plot, summary, table
from benchmarks.replay.trace import sample, scaled, shared_tokens, token_ids, within
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.errors import SkimError
from skim_common.models.costs import cache_cost
from skim_common.models.info import text_config
from skim_common.models.source import local_folder, public_name

__all__ = ["describe", "plot", "run", "table"]

_COMPLETIONS = "/v1/completions"
_FILL_TOKENS = 1024


@dataclass(frozen=True)
class ReplaySettings:
    """requests: number taken from the trace (whole conversations). longest: longest prompt in tokens of the replay.
    seconds: time until the last request arrives. kv_tokens: capacity of the stock server's KV cache. shapes: what the
    models are, for random weights.
    """

    trace: str
    target: str
    speculator: str
    requests: int = 48
    longest: int = 8192
    block_tokens: int = 128
    seconds: float = 80.0
    keep_rate: float = 0.2
    answer_tokens: int = 8
    kv_tokens: int | None = None
    rounds: int = 2
    dtype: str = "float32"
    seed: int = 0
    shapes: str = ""


def run(settings: ReplaySettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; see `benchmarks.replay.results.summary`. Raises SkimError."""
    began = machine()
    traced = read_trace(Path(settings.trace))
    longest = settings.longest * TRACE_BLOCK // settings.block_tokens
    chosen = sample(traced, settings.requests, longest, settings.seed)
    requests = within(chosen, settings.seconds)
    replayed, kv_tokens, about = _measured(settings, requests, progress)
    shares = [shared / request.prompt_tokens for shared, request in zip(shared_tokens(requests), requests, strict=True)]
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    told = {**names, "trace": Path(settings.trace).name, "requests": len(requests)}
    return {
        "machine": began,
        "settings": asdict(settings) | told,
        "about": about,
        "kv_tokens": kv_tokens,
        "longest": max(scaled(request.prompt_tokens, settings.block_tokens) for request in requests),
        **summary(replayed, shares),
    }


def _measured(
    settings: ReplaySettings, requests: Sequence[TracedRequest], progress: Progress
) -> tuple[list[Replayed], dict[str, int], str]:
    from cluster.serve.deployment import deployed

    target, speculator = (local_folder(model, weights=True) for model in (settings.target, settings.speculator))
    max_model_len = settings.longest + 128
    stock_tokens = settings.kv_tokens or 4 * max_model_len
    of_target, of_speculator = (cache_cost(text_config(model)).numbers(1) for model in (target, speculator))
    kv_tokens = _capacities(stock_tokens, settings.keep_rate, of_speculator / of_target)
    if kv_tokens["target"] < max_model_len:
        raise SkimError(
            f"Skim's target would hold {kv_tokens['target']} tokens, less than the longest prompt: raise --kv-tokens"
        )
    with ExitStack() as stack:
        progress("starting a stock vLLM server", 0)
        stock = stack.enter_context(stock_server(Path(target), max_model_len, stock_tokens, dtype=settings.dtype))
        progress("starting Skim", 0)
        config = skim_config(
            Path(target),
            Path(speculator),
            max_model_len,
            kv_tokens["target"],
            speculator_kv_tokens=kv_tokens["speculator"],
            dtype=settings.dtype,
            method="none",
        )
        skim = stack.enter_context(deployed(config, progress=lambda _: None))
        replayed = asyncio.run(_rounds(settings, requests, {"stock": stock, "skim": skim}, kv_tokens, progress))
    models = settings.shapes or f" `{public_name(settings.target)}` and `{public_name(settings.speculator)}`"
    about = f"Target and speculator{models}, {settings.dtype}. {settings.rounds} rounds; both systems have all cores."
    return replayed, kv_tokens, about


def _capacities(stock_tokens: int, keep_rate: float, ratio: float) -> dict[str, int]:
    """The tokens that each KV cache holds: Skim's two have as much memory as the stock server's, divided so that both
    hold the same prompts, the target their kept tokens and the speculator all.

    ratio: KV bytes per token of the speculator, divided by those of the target.
    """
    prompts = stock_tokens / (keep_rate + ratio)
    return {"stock": stock_tokens, "target": int(keep_rate * prompts), "speculator": int(prompts)}


async def _rounds(
    settings: ReplaySettings,
    requests: Sequence[TracedRequest],
    urls: dict[str, str],
    kv_tokens: dict[str, int],
    progress: Progress,
) -> list[Replayed]:
    replayed: list[Replayed] = []
    timeout, connector = aiohttp.ClientTimeout(total=1800), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        client = _Client(settings, session, urls)
        for system in urls:
            progress(f"filling the KV caches of {system}", 0)
            await client.fill(system, kv_tokens)
        for index in range(1, settings.rounds + 1):
            for place, system in enumerate(list(urls) if index % 2 else list(urls)[::-1]):
                done = (2 * (index - 1) + place) / (2 * settings.rounds)
                progress(f"round {index} of {settings.rounds}: {system}", done)
                await asyncio.sleep(SETTLE_S)
                sent = (client.send(system, index, number, request) for number, request in enumerate(requests))
                replayed += await asyncio.gather(*sent)
    return replayed


class _Client:
    def __init__(self, settings: ReplaySettings, session: aiohttp.ClientSession, urls: dict[str, str]) -> None:
        self._settings, self._session, self._urls = settings, session, urls

    async def send(self, system: str, index: int, number: int, request: TracedRequest) -> Replayed:
        """Wait until the request arrives, and send it."""
        await asyncio.sleep(request.at_s)
        settings = self._settings
        ids = token_ids(request, settings.block_tokens, usable_ids())
        options = {"speculative_prefill": {"keep_rate": settings.keep_rate}} if system == "skim" else {}
        answer_tokens = min(settings.answer_tokens, scaled(request.answer_tokens, settings.block_tokens))
        body = self._body(ids.tolist(), answer_tokens, f"round-{index}", options)
        timed = await ask(self._session, self._urls[system] + _COMPLETIONS, body)
        return Replayed(
            system=system,
            round=index,
            number=number,
            ttft_ms=timed.first_ms,
            prompt_tokens=int(ids.size),
            kept_tokens=int(timed.headers.get("x-skim-kept-tokens", ids.size)),
            target_cached=timed.cached_tokens,
            reason=timed.reason.partition(";")[0],
        )

    async def fill(self, system: str, kv_tokens: dict[str, int]) -> None:
        """Fill every KV cache of a system once, with short prompts. Dense ones fill that of Skim's target."""
        # A speculative prompt must be longer than `min_prompt_tokens`.
        wants: list[tuple[int, int, dict[str, Any]]] = [(kv_tokens["stock"], _FILL_TOKENS, {})]
        if system == "skim":
            speculative = {"enabled": "always", "keep_rate": self._settings.keep_rate}
            wants = [(kv_tokens["target"], _FILL_TOKENS, {"speculative_prefill": False})]
            wants.append((kv_tokens["speculator"], 2 * _FILL_TOKENS, {"speculative_prefill": speculative}))
        for tokens, length, options in wants:
            for number in range(-(-tokens // length)):
                ids = random_prompt(length, self._settings.seed, number).tolist()
                body = self._body(ids, 1, f"fill-{length}", options)
                await ask(self._session, self._urls[system] + _COMPLETIONS, body)

    def _body(self, ids: list[int], answer_tokens: int, salt: str, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": ids,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
            **options,
        }
