"""Answers over HTTP: Skim, speculative and dense, and a stock vLLM server on the same GPU, with the same chats.

Each chat is a document of facts and one question, whose answer is known. The modes take turns after each chat. Every
request has its own cache salt, so nothing comes from a prefix cache. Some of the chats are asked again for an answer of
fixed length, which measures decoding.
"""

import asyncio
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.gpu.systems import SKIM, Systems
from benchmarks.harness.chat_client import Timed, ask
from benchmarks.harness.conversations import Style, conversation
from benchmarks.harness.servers import MODEL
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import in_words, spread
from skim_common.models.source import public_name

MODES: dict[str, dict[str, Any]] = {
    "stock": {},
    "dense": {"speculative_prefill": False},
    "speculative": {"speculative_prefill": {"enabled": "always", "min_prompt_tokens": 1}},
}
"""The modes, and their fields in a request. Those of `speculative` have the default's keep rate and drafts."""
TIMED_EVERY = 4
"""Every so many chats, decoding is measured."""
MARGIN = 1.25
"""Tokenizers of real models need up to so many times the tokens of the demo pair's."""


@dataclass(frozen=True)
class ServedSettings:
    """target, speculator: folders of a pair that can answer. shortest, longest: of the chats, in the demo pair's
    tokens; the lengths between are spread evenly on a logarithmic scale. answer_tokens: of the answers that measure
    decoding.
    """

    target: str
    speculator: str
    device: str
    chats: int = 20
    shortest: int = 2048
    longest: int = 16384
    answer_tokens: int = 128
    style: Style = "plain"
    kv_gib: float = 4

    @property
    def lengths(self) -> list[int]:
        return [round(length) for length in np.geomspace(self.shortest, self.longest, self.chats)]

    @property
    def systems(self) -> Systems:
        longest = round(MARGIN * self.longest) + self.answer_tokens + 256
        return Systems(self.device, self.target, self.speculator, longest, self.kv_gib)


def run(
    settings: ServedSettings,
    progress: Progress = silent,
    partial: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure. `rows`: one for each chat and mode. partial: called with the result so far, after each chat.

    Raises SkimError if a system does not start or answer.
    """
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    options = {pool: settings.systems.engine_options(pool) for pool in names}
    result = {"machine": machine(), "settings": asdict(settings) | names, "engine_options": options, "rows": []}
    with settings.systems.started() as urls:
        asyncio.run(_chats(settings, urls, progress, partial, result))
    return result


async def _chats(
    settings: ServedSettings,
    urls: Mapping[str, str],
    progress: Progress,
    partial: Callable[[dict[str, Any]], None],
    result: dict[str, Any],
) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        # Of two lengths, so that all kernels are there: one chat is longer than a prefill step.
        for length in (settings.shortest, settings.longest):
            await _chat(session, urls, replace(settings, chats=1), length, -1)
        for number, length in enumerate(settings.lengths):
            progress(f"chat {number + 1} of {settings.chats}, {length} tokens", number / settings.chats)
            result["rows"] += await _chat(session, urls, settings, length, number)
            partial(result)


async def _chat(
    session: aiohttp.ClientSession, urls: Mapping[str, str], settings: ServedSettings, length: int, number: int
) -> list[dict[str, Any]]:
    """The rows of one chat, one for each mode. number: of the chat; its document follows from it."""
    made = conversation(length, 1, 100 + number, settings.style)
    order = list(MODES)[number % len(MODES) :] + list(MODES)[: number % len(MODES)]
    rows = {}
    for mode in order:
        url = f"{urls[SKIM if mode != 'stock' else 'stock']}/v1/chat/completions"
        body = {"model": MODEL, "messages": made.messages(0, []), "temperature": 0, "stream": True, **MODES[mode]}
        body |= {"stream_options": {"include_usage": True}, "max_tokens": 24}
        timed = await ask(session, url, body | {"cache_salt": uuid.uuid4().hex})
        rows[mode] = {
            "chat": number,
            "mode": mode,
            "prompt_tokens": timed.usage["prompt_tokens"],
            "first_ms": timed.first_ms,
            "right": made.questions[0].is_right(timed.text),
            "ran": timed.reason,
        }
        if number % TIMED_EVERY == 0:
            long = {"max_tokens": settings.answer_tokens, "ignore_eos": True, "cache_salt": uuid.uuid4().hex}
            rows[mode]["tokens_per_s"] = _speed(await ask(session, url, body | long))
    return [rows[mode] for mode in MODES]


def _speed(timed: Timed) -> float:
    """Tokens per second after the first one."""
    return 1e3 * (timed.tokens - 1) / (timed.end_ms - timed.first_ms)


def parts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each mode and part of the lengths: below 4,096 tokens, below 8,192, and the longer ones; and for all.

    to_stock: the stock server's time to the first token, divided by that of the mode for the same chat.
    """
    found = []
    for low, high in ((0, 4096), (4096, 8192), (8192, 10**9), (0, 10**9)):
        stock = {row["chat"]: row for row in rows if row["mode"] == "stock" and low <= row["prompt_tokens"] < high}
        for mode in MODES:
            own = [row for row in rows if row["mode"] == mode and row["chat"] in stock]
            if not own:
                continue
            speeds = [row["tokens_per_s"] for row in own if "tokens_per_s" in row]
            found.append(
                {
                    "tokens": [min(row["prompt_tokens"] for row in own), max(row["prompt_tokens"] for row in own)],
                    "mode": mode,
                    "chats": len(own),
                    "right": sum(row["right"] for row in own),
                    "first_ms": statistics.median(row["first_ms"] for row in own),
                    "to_stock": spread(stock[row["chat"]]["first_ms"] / row["first_ms"] for row in own),
                    "tokens_per_s": statistics.median(speeds) if speeds else None,
                }
            )
    return found


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement."""
    settings = result["settings"]
    return (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}` on {settings['device']}:"
        f" {settings['chats']} chats, a document of facts and one question, one at a time, over HTTP. Skim has Ray and"
        " both pools; it and a stock vLLM server with engines of the same options share the device and take turns."
        " *Stock ÷ first*: the stock server's time to the first token, divided by that of the mode, by chat."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, those of `parts`."""
    columns = ["tokens", "mode", "right", "first token ms", "stock ÷ first (range)", "tokens/s"]
    return columns, [
        [
            " to ".join(f"{size:,}" for size in row["tokens"]),
            row["mode"],
            f"{row['right']} of {row['chats']}",
            f"{row['first_ms']:,.0f}",
            in_words(row["to_stock"]),
            "" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.1f}",
        ]
        for row in parts(result["rows"])
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Time to the first token over the prompt's length, by mode."""
    with plots.figure(path, result) as (axis,):
        lengths: list[int] = []
        for mode in MODES:
            rows = [row for row in result["rows"] if row["mode"] == mode]
            lengths = [row["prompt_tokens"] for row in rows]
            axis.plot(lengths, [row["first_ms"] for row in rows], label=mode)
        plots.prompt_axis(axis, [min(lengths), max(lengths)])
        axis.set_ylim(bottom=0)
        axis.set_title("milliseconds to the first token")
        axis.legend()
