"""Sessions on real engines, small: a stock vLLM server and Skim over HTTP, in the same KV memory.

Lengths and gaps of the sessions are scaled. Prompts are random token ids, as in `benchmarks.replay`: the last tokens
count as the question, and answers are not part of later prompts. All systems are up and take turns, one number of
sessions after another; each sends the same sessions, with a cache salt of its own.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.chat_client import ask
from benchmarks.harness.models import usable_ids
from benchmarks.harness.servers import MODEL, SETTLE_S, skim_config, stock_server
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.sessions.prompts import SessionPrompt, grown
from benchmarks.sessions.results import OVER_IDLE, describe, held, plot, row_of, table
from benchmarks.sessions.simulation import SPECULATOR_MEMORY, Asked, Simulated, System
from benchmarks.sessions.traces import Session, Turn, drawn, read
from skim_common.models.costs import cache_cost
from skim_common.models.info import text_config
from skim_common.models.source import local_folder, public_name

__all__ = ["describe", "plot", "run", "table"]

SYSTEMS = System(), System(skim=True), System(skim=True, catch_up=True)
MARGIN = 64


@dataclass(frozen=True)
class EngineSettings:
    """traces: as in SessionsSettings. longest: of the scaled prompts. scale: what a length is divided by. gap_s: the
    longest gap, to which the others are scaled. kv_tokens: of the stock server. seconds: of each measurement."""

    target: str
    speculator: str
    traces: Path | None = None
    sessions: tuple[int, ...] = (1, 2, 4, 6)
    longest: int = 4096
    scale: int = 32
    gap_scale: int = 10
    most_gap_s: float = 12.0
    kv_tokens: int = 12_288
    seconds: float = 40.0
    keep_rate: float = 0.3
    answer_tokens: int = 4
    seed: int = 0
    shapes: str = ""


def run(settings: EngineSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; the result is that of the simulation, as far as it can be measured over HTTP. Raises SkimError."""
    from cluster.serve.deployment import deployed

    began, longest = machine(), settings.longest * settings.scale
    found = read(settings.traces, longest) if settings.traces else drawn(64, longest, settings.seed)
    sessions = [scaled(session, settings) for session in found]
    target, speculator = (local_folder(name, weights=True) for name in (settings.target, settings.speculator))
    kv_tokens = capacities(settings.kv_tokens, target, speculator)
    room = settings.longest + MARGIN
    with ExitStack() as stack:
        progress("starting a stock vLLM server", 0)
        urls = {"stock": stack.enter_context(stock_server(Path(target), room, settings.kv_tokens))}
        progress("starting Skim", 0)
        config = skim_config(
            Path(target),
            Path(speculator),
            room,
            kv_tokens["target"],
            speculator_kv_tokens=kv_tokens["speculator"],
            method="none",
        )
        urls["Skim"] = stack.enter_context(deployed(config, progress=lambda _: None))
        rows = asyncio.run(_measure(settings, sessions, urls, progress))
    idle = rows[0]
    limit = OVER_IDLE * idle["p95_s"]
    by_system = {system.name: [row for row in rows if row["system"] == system.name] for system in SYSTEMS}
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {
        "machine": began,
        "settings": asdict(settings) | names | {"traces": settings.traces and settings.traces.name},
        "traces": f"{len(sessions)}, lengths divided by {settings.scale} and gaps by {settings.gap_scale}",
        "about": (
            f"Measured: models{settings.shapes or ' `' + names['target'] + '` and `' + names['speculator'] + '`'} on"
            f" CPU. The stock server's KV cache holds {settings.kv_tokens:,} tokens, Skim's target"
            f" {kv_tokens['target']:,} and its speculator {kv_tokens['speculator']:,}."
        ),
        "idle": idle,
        "limit_s": limit,
        "rows": sorted(rows, key=lambda row: list(by_system).index(row["system"])),
        "held": {name: {"sessions": held(found, limit)} for name, found in by_system.items()},
    }


def scaled(session: Session, settings: EngineSettings) -> Session:
    """The session with shorter prompts and gaps, and answers of equal length."""

    def turn(found: Turn) -> Turn:
        shared, size = found.shared // settings.scale, max(2, found.size // settings.scale)
        gap = min(settings.most_gap_s, found.gap_s / settings.gap_scale)
        return replace(found, gap_s=gap, shared=min(shared, size - 1), new=size - min(shared, size - 1))

    return Session(session.opening // settings.scale, tuple(map(turn, session.turns)))


def capacities(stock: int, target: str, speculator: str) -> dict[str, int]:
    """The tokens that Skim's two caches hold in the memory of `stock` tokens of the target, divided as at 70B."""
    of_target, of_speculator = (cache_cost(text_config(model)).numbers(1) for model in (target, speculator))
    rest = SPECULATOR_MEMORY * stock * of_target / of_speculator
    return {"target": int((1 - SPECULATOR_MEMORY) * stock), "speculator": int(rest)}


async def _measure(
    settings: EngineSettings, sessions: Sequence[Session], urls: dict[str, str], progress: Progress
) -> list[dict[str, Any]]:
    rows = []
    timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        # Fills the caches, and teaches the router.
        plan = [(0, settings.sessions[-1], system) for system in SYSTEMS]
        plan += [(number, users, system) for number, users in enumerate(settings.sessions, 1) for system in SYSTEMS]
        for place, (number, users, system) in enumerate(plan):
            progress(f"{users} sessions: {system.name}" if number else "warming up", place / len(plan))
            await asyncio.sleep(SETTLE_S)
            url = urls["Skim" if system.skim else "stock"] + "/v1/completions"
            asked = await _Users(settings, sessions, system, http, url, f"{system.name}-{number}").run(users)
            if number:
                rows.append(row_of(system, Simulated(users, asked, settings.seconds, 0, _computed(asked))))
    return rows


def _computed(asked: Sequence[Asked]) -> int:
    return sum(turn.kept - turn.cached for turn in asked)


class _Users:
    def __init__(
        self,
        settings: EngineSettings,
        sessions: Sequence[Session],
        system: System,
        http: aiohttp.ClientSession,
        url: str,
        salt: str,
    ) -> None:
        self._settings, self._sessions, self._system = settings, sessions, system
        self._http, self._url, self._salt = http, url, salt
        self._asked = list[Asked]()

    async def run(self, users: int) -> list[Asked]:
        """All turns until the time is over, at least one of each user."""
        end = time.perf_counter() + self._settings.seconds
        await asyncio.gather(*(self._user(number, users, end) for number in range(users)))
        return self._asked

    async def _user(self, number: int, users: int, end: float) -> None:
        for chosen in range(number, 1_000_000, users):
            session = self._sessions[chosen % len(self._sessions)]
            for turn, prompt, _ in grown(session, chosen, usable_ids()):
                await asyncio.sleep(turn.gap_s)
                await self._ask(prompt)
                if time.perf_counter() > end:
                    return

    async def _ask(self, prompt: SessionPrompt) -> None:
        settings = self._settings
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": prompt.token_ids.tolist(),
            "max_tokens": settings.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": self._salt,
        }
        if self._system.skim:
            body["speculative_prefill"] = {
                "keep_rate": settings.keep_rate,
                "min_prompt_tokens": 256,
                "protected_spans": [list(span) for span in prompt.protected],
                "catch_up": "auto" if self._system.catch_up else "off",
            }
        timed = await ask(self._http, self._url, body)
        kept = int(timed.headers.get("x-skim-kept-tokens", prompt.size))
        reason = timed.reason.partition(";")[0]
        self._asked.append(Asked(timed.first_ms / 1e3, prompt.size, timed.cached_tokens, kept, reason))
