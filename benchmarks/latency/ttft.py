"""Time to first token: a stock vLLM server, Skim over HTTP, and the lower limit of Skim's method.

All systems use the same cores and the same engine options and stay up during the whole run. They take turns after each
request, so other load on the machine slows all columns alike; only one request runs at a time. Ratios are formed within
a round. All columns get the same chats, a document and a question in the words of the demo pair, with a cache salt, so
nothing comes from a prefix cache. The limit gets as many random token ids.

- dense: a stock vLLM server. The request function of `vllm bench serve` measures from sending the request to the first
  streamed token. It is called here as a library, because the command line cannot take turns with another server.
- Skim: the deployment that `skim serve` starts, measured by the same function.
- limit: the speculator's forward over the prompt, in windows where Skim reads windows, plus the target's forward over
  as many tokens as Skim kept. Each is measured alone on a plain vLLM engine, without HTTP, Ray, look-ahead, scoring, or
  the question in each window. If Skim ran dense, the limit is the target's forward alone; the difference to the dense
  column is then what the stock server adds.

The speculator has a head profile, as those have that Skim brings along, so that it reads prompts in windows.

Every KV cache is filled once before the first round, and a pause follows each request to the stock server
(`benchmarks.harness.servers` says why).
"""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.models import BenchPair, bench_pair, every_head, flop_ratio, random_prompt
from benchmarks.harness.servers import MODEL, SETTLE_S, engine_environment, engine_options, skim_config, stock_server
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import spread
from demo_models.documents import make_document
from kv_transfer.options import SelectionOptions
from speculator_service.scoring import heads

LENGTHS = (1024, 2048, 4096, 8192)
KEEP_RATES = (0.1, 0.2, 0.3, 0.5, 1.0)
SHORT_LENGTHS = (256, 512, 896)
ANSWER_TOKENS = 2
"""Tokens per answer. A second one is asked for so that drafting is on when the first token comes."""

FILLS = 2
"""Number of the longest prompts that each KV cache holds."""

WINDOW_TOKENS = SelectionOptions().window_tokens

Case = tuple[int, float | None]
"""Prompt tokens and keep rate. The keep rate None leaves all options at Skim's defaults."""


@dataclass(frozen=True)
class TtftSettings:
    """rounds: measured rounds, after one warm-up round. short_lengths: prompts that are sent with Skim's defaults."""

    lengths: tuple[int, ...] = LENGTHS
    keep_rates: tuple[float, ...] = KEEP_RATES
    short_lengths: tuple[int, ...] = SHORT_LENGTHS
    rounds: int = 3
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """One request of one column (dense, skim or limit). keep_rate: None for dense, and for Skim's defaults."""

    column: str
    prompt_tokens: int
    keep_rate: float | None


@dataclass(frozen=True)
class Timing:
    """The result of a turn. ms: time to first token. parts: milliseconds by part, from Skim's `Server-Timing` or for
    the two forwards of the limit.
    """

    turn: Turn
    round: int
    ms: float
    kept_tokens: int
    parts: dict[str, float]


def turns(settings: TtftSettings, round_index: int) -> Iterator[Turn]:
    """The turns of a round: for each length dense, then Skim and its limit at each keep rate.

    Every second round reverses the keep rates and puts dense last. The limit always follows Skim, because it needs the
    number of tokens that Skim kept.
    """
    cases: list[tuple[int, list[float | None]]] = [(length, [None]) for length in settings.short_lengths]
    cases += [(length, list(settings.keep_rates)) for length in settings.lengths]
    for length, rates in cases:
        dense = [Turn("dense", length, None)]
        of_rates = [Turn(column, length, rate) for rate in rates for column in ("skim", "limit")]
        if round_index % 2:
            of_rates = [Turn(column, length, rate) for rate in reversed(rates) for column in ("skim", "limit")]
        yield from of_rates + dense if round_index % 2 else dense + of_rates


def run(settings: TtftSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; `rows` are described in `rows_of`. Raises SkimError if a system does not start or does not answer."""
    from cluster.serve.deployment import deployed

    began, pair = machine(), bench_pair(seed=settings.seed)
    longest = max(settings.lengths + settings.short_lengths) + 64
    with ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "heads.json"
        heads.save(every_head(pair.speculator, pair.speculator_shape), profile)
        config = skim_config(pair.target, pair.speculator, longest, FILLS * longest, head_profile=profile)
        progress("starting a stock vLLM server", 0)
        dense = stack.enter_context(stock_server(pair.target, longest, FILLS * longest))
        progress("starting Skim", 0)
        skim = stack.enter_context(deployed(config, progress=lambda _: None))
        progress("starting two engines for the limit", 0)
        timings = asyncio.run(_measure(settings, pair, {"dense": dense, "skim": skim}, longest, progress))
    return {
        "machine": began,
        "settings": asdict(settings),
        "models": {"target": str(pair.target_shape), "speculator": str(pair.speculator_shape)},
        "engine_options": engine_options(longest, FILLS * longest),
        "environment": engine_environment(),
        "defaults": {
            "keep_rate": config.selection.keep_rate,
            "min_prompt_tokens": config.router.min_prompt_tokens,
            "window_tokens": WINDOW_TOKENS,
        },
        "flop_ratios": {
            str(length): flop_ratio(pair, length, min(settings.keep_rates), WINDOW_TOKENS)
            for length in settings.lengths
        },
        "rows": rows_of(timings),
    }


async def _measure(
    settings: TtftSettings, pair: BenchPair, urls: dict[str, str], longest: int, progress: Progress
) -> list[Timing]:
    from benchmarks.harness.stock_vllm import StockEngine, StreamingClient

    options = engine_options(longest, FILLS * longest)
    async with StreamingClient() as client:
        with ExitStack() as stack:
            engines = {
                name: stack.enter_context(StockEngine.started(model, options, engine_environment()))
                for name, model in (("speculator", pair.speculator), ("target", pair.target))
            }
            asker = _Asker(client, urls, engines)
            await _fill_caches(settings, asker, progress)
            return await _take_turns(settings, asker, progress)


async def _fill_caches(settings: TtftSettings, asker: "_Asker", progress: Progress) -> None:
    """Fill every KV cache once, by sending each engine as many prompts as its cache holds."""
    longest = max(settings.lengths + settings.short_lengths)
    kept: dict[Case, int] = {}
    # Keep rate 1 fills the cache of Skim's target, keep rate 0.1 that of its speculator.
    turns = [Turn("dense", longest, None)]
    turns += [Turn(column, longest, rate) for rate in (1.0, 0.1) for column in ("skim", "limit")]
    for turn in turns * FILLS:
        progress(f"filling KV caches: {turn.column}, {longest} tokens", 0)
        await asker.ask(turn, 0, settings.seed, kept)


async def _take_turns(settings: TtftSettings, asker: "_Asker", progress: Progress) -> list[Timing]:
    timings: list[Timing] = []
    planned = [(index, turn) for index in range(settings.rounds + 1) for turn in turns(settings, index)]
    # For the progress bar: the time of a prefill grows faster than its length, and slower than its square.
    weights = [turn.prompt_tokens**1.5 for _, turn in planned]
    kept: dict[Case, int] = {}
    for number, (index, turn) in enumerate(planned):
        which = f"round {index} of {settings.rounds}" if index else "warming up"
        progress(f"{which}: {turn.column}, {turn.prompt_tokens} tokens", sum(weights[:number]) / sum(weights))
        timing = await asker.ask(turn, index, settings.seed + index, kept)
        if turn.column == "dense":
            await asyncio.sleep(SETTLE_S)
        if index:
            timings.append(timing)
    return timings


class _Asker:
    def __init__(self, client: Any, urls: dict[str, str], engines: dict[str, Any]) -> None:
        self._client, self._urls, self._engines = client, urls, engines

    async def ask(self, turn: Turn, index: int, seed: int, kept: dict[Case, int]) -> Timing:
        """Run one turn. kept: tokens that Skim kept in each case; Skim's turns write it and the limit's read it."""
        case, made = (turn.prompt_tokens, turn.keep_rate), make_document(turn.prompt_tokens, seed)
        if turn.column == "limit":
            parts = await self._limit(random_prompt(made.prompt_tokens, seed).tolist(), kept[case])
            return Timing(turn, index, sum(parts.values()), kept[case], parts)
        options: dict[str, Any] = {}
        if turn.column == "skim":
            rated = {"selector": "speculator", "keep_rate": turn.keep_rate}  # as the limit, which reads
            asked = {} if turn.keep_rate is None else rated
            options = {"speculative_prefill": {"enabled": "always", **asked}}
        reply = await self._client.ask(self._urls[turn.column], MODEL, made.messages, ANSWER_TOKENS, options)
        if turn.column == "skim":
            kept[case] = int(reply.headers["x-skim-kept-tokens"])
        return Timing(turn, index, reply.ttft_ms, kept.get(case, made.prompt_tokens), reply.server_timing)

    async def _limit(self, ids: list[int], kept: int) -> dict[str, float]:
        parts = {"target": await self._engines["target"].forward_ms(ids[:kept])}
        if kept < len(ids):
            read = [ids[at : at + WINDOW_TOKENS] for at in range(0, len(ids), WINDOW_TOKENS)]
            parts["speculator"] = await self._engines["speculator"].forward_ms(*read)
        return parts


def rows_of(timings: list[Timing]) -> list[dict[str, Any]]:
    """One row per length and keep rate (None: Skim's defaults), with medians in milliseconds.

    `skim_over_limit`, `dense_over_skim` and `dense_over_limit` are formed within a round and have a `median`, a
    `lowest` and a `highest` value. `parts` holds the medians of Skim's parts and of the limit's two forwards.
    """
    cases = dict.fromkeys((t.turn.prompt_tokens, t.turn.keep_rate) for t in timings if t.turn.column == "skim")
    return [_row(*case, timings) for case in sorted(cases, key=lambda case: (case[0], case[1] or 0))]


def _row(prompt_tokens: int, keep_rate: float | None, timings: list[Timing]) -> dict[str, Any]:
    def of(column: str, rate: float | None) -> list[Timing]:
        wanted = Turn(column, prompt_tokens, rate)
        return sorted((t for t in timings if t.turn == wanted), key=lambda t: t.round)

    dense, skim, limit = of("dense", None), of("skim", keep_rate), of("limit", keep_rate)
    return {
        "prompt_tokens": prompt_tokens,
        "keep_rate": keep_rate,
        "kept_tokens": skim[-1].kept_tokens,
        "dense_ms": _median(dense),
        "skim_ms": _median(skim),
        "limit_ms": _median(limit),
        "skim_over_limit": _spread(skim, limit),
        "dense_over_skim": _spread(dense, skim),
        "dense_over_limit": _spread(dense, limit),
        "parts": {"skim": _parts(skim), "limit": _parts(limit)},
    }


def _median(timings: list[Timing]) -> float:
    return statistics.median(t.ms for t in timings)


def _spread(over: list[Timing], under: list[Timing]) -> dict[str, float]:
    return spread(a.ms / b.ms for a, b in zip(over, under, strict=True))


def _parts(timings: list[Timing]) -> dict[str, float]:
    names = dict.fromkeys(name for t in timings for name in t.parts)
    return {name: statistics.median(t.parts.get(name, 0.0) for t in timings) for name in names}
