"""Cost of scoring, compared with one read of the keys and as a share of the speculator's prefill.

Runs in the worker process of the speculator engine, on its paged cache and its cores. *Alone*: the worker scores a
prompt of M tokens with random keys. That takes turns with reading a large buffer, which gives the memory bandwidth. No
prefill is needed, so prompts can be long. *In requests*: the engine gets whole prompts, and its counters tell how much
of the time was scoring.
"""

import asyncio
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.harness.models import bench_pair, random_prompt
from benchmarks.harness.servers import engine_environment, engine_options
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest

LENGTHS = tuple(1024 * 2**i for i in range(8))
PREFILL_LENGTHS = (4096, 16384)
LOOK_AHEAD = 8
_EXTENSION = "benchmarks.engines.scoring_worker.ScoringBench"


@dataclass(frozen=True)
class ScoringSettings:
    """lengths: prompt lengths that are scored alone, `repeats` times each. prefill_lengths: those of whole requests,
    `rounds` times each.
    """

    lengths: tuple[int, ...] = LENGTHS
    prefill_lengths: tuple[int, ...] = PREFILL_LENGTHS
    repeats: int = 9
    rounds: int = 3
    seed: int = 0


def run(settings: ScoringSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: one per prompt length, with `alone` (see `ScoringBench.bench_scoring`) and `prefill`.

    Each of the two is None for a length where it was not measured.
    """
    return asyncio.run(_run(settings, progress))


async def _run(settings: ScoringSettings, progress: Progress) -> dict[str, Any]:
    from speculator_service.vllm_backend.engine import VllmSpeculator

    began, pair = machine(), bench_pair(seed=settings.seed)
    longest = max(settings.lengths + settings.prefill_lengths) + 64
    progress("starting the speculator", 0)
    with patch.dict(os.environ, engine_environment()):
        engine = VllmSpeculator(str(pair.speculator), worker_extension_cls=_EXTENSION, **engine_options(longest))
    try:
        shares = {length: await _share(engine, length, settings, progress) for length in settings.prefill_lengths}
        alone = await _alone(engine, settings, progress)
    finally:
        engine.close()
    return {
        "machine": began,
        "settings": asdict(settings) | {"look_ahead": LOOK_AHEAD},
        "models": {"speculator": str(pair.speculator_shape)},
        "rows": [row_of(length, alone.get(length), shares.get(length)) for length in sorted({*alone, *shares})],
    }


async def _alone(engine: Any, settings: ScoringSettings, progress: Progress) -> dict[int, dict[str, Any]]:
    """Figures by length. Lengths are measured in ascending order, because only a higher memory peak can be seen."""
    lengths = sorted(settings.lengths)
    await engine._engine.collective_rpc("bench_fill", args=(lengths[-1],))
    found = {}
    for number, length in enumerate(lengths):
        progress(f"scoring {length} tokens", 0.5 + 0.5 * number / len(lengths))
        [found[length]] = await engine._engine.collective_rpc(
            "bench_scoring", args=(length, LOOK_AHEAD, settings.repeats)
        )
    return found


async def _share(engine: Any, length: int, settings: ScoringSettings, progress: Progress) -> dict[str, Any]:
    """Scoring as a share of the prefill, for prompts of this length. Each round has a prompt with and one without
    look-ahead.
    """
    prefills, scorings = [], []
    for index in range(settings.rounds + 1):
        progress(f"prompts of {length} tokens", 0.5 * index / (settings.rounds + 1))
        prefill, _ = await _request(engine, length, look_ahead=0, seed=(settings.seed, index, 0))
        _, scoring = await _request(engine, length, look_ahead=LOOK_AHEAD, seed=(settings.seed, index, 1))
        prefills.append(prefill)
        scorings.append(scoring)
    return share_of(prefills[1:], scorings[1:])


def share_of(prefills_ms: list[float], scorings_ms: list[float]) -> dict[str, Any]:
    """Medians. Shares are formed within a round; `share` also has their range."""
    shares = [scoring / prefill for scoring, prefill in zip(scorings_ms, prefills_ms, strict=True)]
    return {
        "prefill_ms": statistics.median(prefills_ms),
        "scoring_ms": statistics.median(scorings_ms),
        "share": {"median": statistics.median(shares), "lowest": min(shares), "highest": max(shares)},
    }


async def _request(engine: Any, length: int, look_ahead: int, seed: tuple[int, ...]) -> tuple[float, float]:
    """Milliseconds of one request without its scoring, and of its scoring."""
    ids = random_prompt(length, *seed)
    [before] = await engine.worker_stats()
    began = time.perf_counter()
    await engine.score(ScoreRequest(f"{length}-{seed}", ids, SelectionOptions(look_ahead=look_ahead)))
    elapsed = 1e3 * (time.perf_counter() - began)
    [after] = await engine.worker_stats()
    scoring = after["scoring_ms"] - before["scoring_ms"]
    return elapsed - scoring, scoring


def row_of(length: int, alone: dict[str, Any] | None, share: dict[str, Any] | None) -> dict[str, Any]:
    """The row of one length. The time of one read of the keys (`keys_ms`) is their bytes over the bandwidth."""
    if alone:
        keys_ms = alone["key_bytes"] / alone["read_gb_s"] / 1e6
        alone = {**alone, "keys_ms": keys_ms, "scoring_over_keys": alone["scoring_ms"] / keys_ms}
    return {"prompt_tokens": length, "alone": alone, "prefill": share}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    return (
        f"Speculator with random weights, {result['models']['speculator']}, float32, {settings['look_ahead']} "
        f"look-ahead tokens, in the worker process of the engine, on all cores. Alone: medians of "
        f"{settings['repeats']} runs on a cache filled with random values. The time to read the keys once follows from "
        "their size and the memory bandwidth, which is measured in between. Peak memory is the growth of the process. "
        f"In requests: medians of {settings['rounds']} rounds; scoring as a share of the prefill, with its range."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per length. Cells of what was not measured are empty."""
    columns = ["prompt", "scoring ms", "reading keys ms", "scoring / reading", "GB/s read", "peak MiB", "keys MiB"]
    columns += ["prefill ms", "in request ms", "share of prefill"]
    return columns, [
        [f"{row['prompt_tokens']:,}", *_alone_cells(row["alone"]), *_share_cells(row["prefill"])]
        for row in result["rows"]
    ]


def _alone_cells(alone: dict[str, Any] | None) -> list[str]:
    if alone is None:
        return [""] * 6
    return [
        f"{alone['scoring_ms']:.1f}",
        f"{alone['keys_ms']:.2f}",
        f"{alone['scoring_over_keys']:.1f}",
        f"{alone['read_gb_s']:.1f}",
        f"{alone['peak_bytes'] / 2**20:.0f}",
        f"{alone['key_bytes'] / 2**20:.1f}",
    ]


def _share_cells(prefill: dict[str, Any] | None) -> list[str]:
    if prefill is None:
        return [""] * 3
    share = prefill["share"]
    in_words = f"{share['median']:.2%} ({share['lowest']:.2%} to {share['highest']:.2%})"
    return [f"{prefill['prefill_ms']:,.0f}", f"{prefill['scoring_ms']:.1f}", in_words]


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: time of scoring and of one read of the keys, by prompt length. Right: peak memory of scoring."""
    rows = [(row["prompt_tokens"], row["alone"]) for row in result["rows"] if row["alone"]]
    lengths = [length for length, _ in rows]
    with plots.figure(path, result, panels=2) as [times, memory]:
        times.plot(lengths, [alone["scoring_ms"] for _, alone in rows], label="scoring")
        times.plot(lengths, [alone["keys_ms"] for _, alone in rows], label="reading the keys once")
        times.set(ylabel="ms", yscale="log")
        memory.plot(lengths, [alone["peak_bytes"] / 2**20 for _, alone in rows], label="peak memory of scoring")
        memory.plot(lengths, [alone["key_bytes"] / 2**20 for _, alone in rows], label="the keys themselves")
        memory.set(ylabel="MiB", ylim=(0, None))
        for axes in (times, memory):
            plots.prompt_axis(axes, lengths)
            axes.legend()
