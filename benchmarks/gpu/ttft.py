"""Time to first token: dense (the target alone), Skim, and the lower limit of Skim's method.

Everything runs in one process, without router, Ray and network. In each round the lengths take turns, and for each
length the three measurements take turns. `limit_ms` is the speculator's forward over all tokens, in windows where Skim
reads windows, plus the target's forward over the kept tokens, and nothing else. `expected` is the arithmetic.
"""

import re
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.arithmetic import Arithmetic, reason
from benchmarks.gpu.pair import MeasuredPair
from benchmarks.gpu.presets import configs, preset
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

DEFAULT = "default"
"""A keep rate: what the default keeps of a prompt of the length (`kept_by_default`)."""
KEPT_BY_DEFAULT = {2048: 0.38, 4096: 0.37, 8192: 0.32, 16384: 0.30}
"""The measured share, by the tokens of a prompt: Qwen2.5-Coder 0.5B for 1.5B (docs/results.md, answer quality by prompt
length). Prompts of which the guard keeps more, or all, count."""


def kept_by_default(tokens: float) -> float:
    """The share of a prompt of so many tokens: of the nearest shorter measured length. Short prompts run dense."""
    if tokens < PrefillOptions().min_prompt_tokens:
        return 1.0
    lengths = list(KEPT_BY_DEFAULT)
    return KEPT_BY_DEFAULT[lengths[max(0, bisect_right(lengths, tokens) - 1)]]


def window_of(read: str) -> int | None:
    """Tokens of a window, of `windows:4096`; None for `whole`. Raises SkimError for another name."""
    if read == "whole":
        return None
    if not (found := re.fullmatch(r"windows:(\d+)", read)):
        raise SkimError(f"a way to read is whole or windows:TOKENS, not {read}")
    return int(found[1])


class Case(NamedTuple):
    """How the speculator reads (`window_of`), and the keep rate, a number or `default`."""

    read: str
    rate: float | str

    def share(self, length: int) -> float:
        """The share of a prompt of so many tokens to keep."""
        return kept_by_default(length) if isinstance(self.rate, str) else self.rate


@dataclass(frozen=True)
class GpuTtftSettings:
    """preset: a name in presets.PRESETS. reads: how the speculator reads the prompt, see `window_of`.

    rounds: measured rounds, after a warm-up with the shortest prompt. look_ahead: of `whole`.
    """

    preset: str
    device: str
    lengths: tuple[int, ...]
    keep_rates: tuple[float | str, ...] = (0.1, 0.2)
    look_ahead: int = 8
    rounds: int = 3
    reads: tuple[str, ...] = ("whole",)

    @property
    def cases(self) -> list[Case]:
        """What is measured of a prompt."""
        return [Case(read, rate) for read in self.reads for rate in self.keep_rates]

    def options(self, case: Case, length: int) -> SelectionOptions:
        """The options of a selection."""
        window = window_of(case.read)
        read = {"read": "windows", "window_tokens": window} if window else {"read": "whole"}
        return SelectionOptions.model_validate({"keep_rate": case.share(length), "look_ahead": self.look_ahead, **read})


def prompt_ids(length: int, seed: int) -> Any:
    """Random token ids (int32 [length]) of the demo pair's tokenizer, without its special tokens."""
    return np.random.default_rng(seed).integers(16, 700, length, dtype=np.int32)


async def run(
    pair: MeasuredPair,
    settings: GpuTtftSettings,
    progress: Progress = silent,
    partial: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure. `rows`: one per length and case, with medians over the rounds.

    partial: called with the result so far, after each length of a measured round.
    """
    began = machine()
    sizes = configs(preset(settings.preset))
    arithmetic = Arithmetic.of(*sizes, began["gpu"])
    seen: dict[tuple[int, Case], list[dict[str, float]]] = {}

    def result() -> dict[str, Any]:
        rows = [_row(length, case, runs, arithmetic) for (length, case), runs in sorted(seen.items(), key=_order)]
        return {"machine": began, "settings": vars(settings), "memory": pair.memory(), "rows": rows}

    progress("warming up", 0)
    await _length(pair, settings, min(settings.lengths), 0)
    for round in range(1, settings.rounds + 1):
        for index, length in enumerate(settings.lengths):
            done = (round - 1 + index / len(settings.lengths)) / settings.rounds
            progress(f"round {round}: {length} tokens", done)
            for case, run in (await _length(pair, settings, length, 1000 * round + index)).items():
                seen.setdefault((length, case), []).append(run)
            partial(result())
    return result()


def _order(found: tuple[tuple[int, Case], Any]) -> int:
    """By length; the cases of a length keep their order."""
    return found[0][0]


async def _length(
    pair: MeasuredPair, settings: GpuTtftSettings, length: int, seed: int
) -> dict[Case, dict[str, float]]:
    """Measure one prompt: dense, and the speculator's forward in each way to read, once; the rest in each case."""
    ids = prompt_ids(length, seed)
    dense, reads = await pair.dense(ids), dict[int | None, float]()
    runs = {}
    for case in settings.cases:
        window = window_of(case.read)
        if window not in reads:
            reads[window] = await pair.read(ids, window)
        skim = await pair.skim(ids, settings.options(case, length))
        limit = reads[window] + await pair.read_kept(skim.kept)
        kept = float(skim.kept.token_ids.size)
        runs[case] = {"dense_ms": dense, "skim_ms": skim.ms, "limit_ms": limit, "kept_tokens": kept}
        runs[case] |= {f"{name}_ms": value for name, value in skim.parts.items()}
    return runs


def _row(length: int, case: Case, runs: list[dict[str, float]], arithmetic: Arithmetic | None) -> dict[str, Any]:
    """arithmetic: of the GPU."""
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    row: dict[str, Any] = {
        "prompt_tokens": length,
        "read": case.read,
        "keep_rate": case.rate,
        **medians,
        "skim_to_limit": _ratios(runs, "skim_ms", "limit_ms"),
        "dense_to_skim": _ratios(runs, "dense_ms", "skim_ms"),
    }
    if arithmetic:
        row["expected"] = arithmetic.expected(length, round(medians["kept_tokens"]), window_of(case.read))
        row["why_not_as_expected"] = reason(row)
    return row


def _ratios(runs: list[dict[str, float]], over: str, under: str) -> dict[str, float]:
    """The median of the ratios, which are formed within a round, and their range."""
    ratios = [run[over] / run[under] for run in runs]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    reasons = [
        f" {row['prompt_tokens']:,} tokens, {row['read']}, keep {row['keep_rate']}: {row['why_not_as_expected']}."
        for row in result["rows"]
        if row.get("why_not_as_expected")
    ]
    return (
        f"Preset `{settings['preset']}` with random weights on {settings['device']}, in one process,"
        f" {settings['look_ahead']} look-ahead tokens (none with windows), {settings['rounds']} rounds. *Limit*: the"
        " speculator's forward over the whole prompt, or over the windows, plus the target's forward over the kept"
        " tokens, each measured alone. *Expected*: dense ÷ Skim by the arithmetic of `skim plan`,"
        " calibrated on an earlier run without CUDA graphs." + "".join(reasons)
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per length and case."""
    columns = ["tokens", "read", "keep", "kept", "dense ms", "Skim ms", "limit ms", "Skim ÷ limit"]
    return [*columns, "dense ÷ Skim (range)", "expected"], [
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
            f"{row['expected']['dense_to_skim']:.2f}" if "expected" in row else "",
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
