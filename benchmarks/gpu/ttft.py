"""Time to first token: dense (the target alone), Skim, and the lower limit of Skim's method.

Everything runs in one process, without router, Ray and network. In each round the lengths take turns, and for each
length the three measurements take turns. `limit_ms` is the speculator's forward over all tokens plus the target's
forward over the kept tokens, and nothing else.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.pair import MeasuredPair
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.options import SelectionOptions
from skim_common.errors import SkimError

Case = tuple[str, float]
"""How the speculator reads, and the keep rate."""


@dataclass(frozen=True)
class GpuTtftSettings:
    """preset: a name in presets.PRESETS. reads: how the speculator reads, `whole` or `windows` (vLLM only).

    rounds: measured rounds, after one warm-up round. look_ahead: of `whole`.
    """

    preset: str
    device: str
    lengths: tuple[int, ...]
    keep_rates: tuple[float, ...] = (0.1, 0.2)
    look_ahead: int = 8
    rounds: int = 3
    reads: tuple[str, ...] = ("whole",)

    @property
    def cases(self) -> list[Case]:
        """What is measured of a prompt."""
        return [(read, rate) for read in self.reads for rate in self.keep_rates]

    def options(self, case: Case) -> SelectionOptions:
        """The options of a selection."""
        read, rate = case
        return SelectionOptions.model_validate({"keep_rate": rate, "look_ahead": self.look_ahead, "read": read})


def prompt_ids(length: int, seed: int) -> Any:
    """Random token ids (int32 [length]) of the demo pair's tokenizer, without its special tokens."""
    return np.random.default_rng(seed).integers(16, 700, length, dtype=np.int32)


async def run(pair: MeasuredPair, settings: GpuTtftSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: one per length and case, with medians over the rounds.

    Raises SkimError for windows with an engine that does not read them.
    """
    if "windows" in settings.reads and pair.engine != "vllm":
        raise SkimError(f"engine {pair.engine} reads no windows: choose --reads whole or --engine vllm")
    began = machine()
    seen: dict[tuple[int, Case], list[dict[str, float]]] = {
        (length, case): [] for length in settings.lengths for case in settings.cases
    }
    for round in range(settings.rounds + 1):
        for index, length in enumerate(settings.lengths):
            done = (round + index / len(settings.lengths)) / (settings.rounds + 1)
            progress(f"round {round}: {length} tokens", done)
            for case, run in (await _length(pair, settings, length, 1000 * round + index)).items():
                if round:
                    seen[length, case].append(run)
    rows = [_row(length, case, runs) for (length, case), runs in seen.items()]
    return {
        "machine": began,
        "engine": pair.engine,
        "settings": vars(settings),
        "memory": pair.memory(),
        "rows": rows,
    }


async def _length(
    pair: MeasuredPair, settings: GpuTtftSettings, length: int, seed: int
) -> dict[Case, dict[str, float]]:
    """Measure one prompt: dense and the speculator's forward once, the rest in each case."""
    ids = prompt_ids(length, seed)
    dense, read = await pair.dense(ids), await pair.read(ids)
    runs = {}
    for case in settings.cases:
        skim = await pair.skim(ids, settings.options(case))
        limit = read + await pair.read_kept(skim.kept)
        kept = float(skim.kept.token_ids.size)
        runs[case] = {"dense_ms": dense, "skim_ms": skim.ms, "limit_ms": limit, "kept_tokens": kept}
        runs[case] |= {f"{name}_ms": value for name, value in skim.parts.items()}
    return runs


def _row(length: int, case: Case, runs: list[dict[str, float]]) -> dict[str, Any]:
    read, rate = case
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {
        "prompt_tokens": length,
        "read": read,
        "keep_rate": rate,
        **medians,
        "skim_to_limit": _ratios(runs, "skim_ms", "limit_ms"),
        "dense_to_skim": _ratios(runs, "dense_ms", "skim_ms"),
    }


def _ratios(runs: list[dict[str, float]], over: str, under: str) -> dict[str, float]:
    """The median of the ratios, which are formed within a round, and their range."""
    ratios = [run[over] / run[under] for run in runs]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    return (
        f"Preset `{settings['preset']}` with random weights, engine `{result['engine']}`, in one process,"
        f" {settings['look_ahead']} look-ahead tokens (none with windows), {settings['rounds']} rounds. *Limit*: the"
        " speculator's forward over the whole prompt plus the target's forward over the kept tokens, each measured"
        " alone. Windows can be below it."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per length and case."""
    columns = [
        "tokens",
        "read",
        "keep",
        "kept",
        "dense ms",
        "Skim ms",
        "limit ms",
        "Skim ÷ limit",
        "dense ÷ Skim (range)",
    ]
    return columns, [
        [
            f"{row['prompt_tokens']:,}",
            row["read"],
            str(row["keep_rate"]),
            f"{row['kept_tokens']:,.0f}",
            f"{row['dense_ms']:,.0f}",
            f"{row['skim_ms']:,.0f}",
            f"{row['limit_ms']:,.0f}",
            f"{row['skim_to_limit']['median']:.2f}",
            _with_range(row["dense_to_skim"]),
        ]
        for row in result["rows"]
    ]


def _with_range(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: seconds to first token by prompt length. Right: dense / Skim by prompt length."""
    cases = dict.fromkeys((row["read"], row["keep_rate"]) for row in result["rows"])
    with plots.figure(path, result, panels=2) as (left, right):
        for index, case in enumerate(cases):
            rows = [row for row in result["rows"] if (row["read"], row["keep_rate"]) == case]
            name = f"{case[0]}, keep {case[1]}"
            lengths = [row["prompt_tokens"] for row in rows]
            if not index:
                left.plot(lengths, [row["dense_ms"] / 1e3 for row in rows], label="dense")
            left.plot(lengths, [row["skim_ms"] / 1e3 for row in rows], label=f"Skim, {name}")
            right.plot(lengths, [row["dense_to_skim"]["median"] for row in rows], label=name)
        for axis in (left, right):
            plots.prompt_axis(axis, lengths)
            axis.legend()
        left.set_yscale("log")
        left.set_title("seconds to the first token")
        right.set_ylim(bottom=0)
        right.set_title("dense ÷ Skim")
