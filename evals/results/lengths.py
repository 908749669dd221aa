"""The result of an untimed `skim eval` over several prompt lengths, for the results page: quality by prompt length."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from evals.results import bootstrap
from evals.results.bootstrap import Interval
from evals.results.comparison import CAN_DO
from evals.run.ask import Case
from evals.selection.selectors import DENSE

ALL_LENGTHS = 0
"""Stands for all lengths together."""

Outcome = tuple[float, float, float]
"""Score, dense score, and share of the prompt that the target read."""


@dataclass(frozen=True)
class Figure:
    """Mean over the families that dense can do: score, dense score, paired difference with its interval, kept share."""

    n: int
    score: float
    dense: float
    difference: Interval
    kept: float


def able_families(result: dict[str, Any]) -> list[str]:
    """The families of tasks that dense can do, over all lengths: `comparison.CAN_DO` at least."""
    dense: dict[str, list[float]] = defaultdict(list)
    for sample in result["samples"]:
        dense[sample["family"]].append(_scores(sample)[DENSE, 1.0][0])
    return [family for family, scores in dense.items() if _mean(scores) >= CAN_DO]


def figure(result: dict[str, Any], case: Case, length: int = ALL_LENGTHS) -> Figure:
    """A case's figure at a prompt length. Each family counts once."""
    found: dict[str, list[Outcome]] = {family: [] for family in able_families(result)}
    for sample in result["samples"]:
        if sample["family"] in found and length in (ALL_LENGTHS, sample["length"]):
            scores = _scores(sample)
            score, read = scores[case]
            found[sample["family"]].append((score, scores[DENSE, 1.0][0], read / sample["prompt"]))
    means = [[_mean(column) for column in zip(*outcomes, strict=True)] for outcomes in found.values() if outcomes]
    score, dense, kept = (_mean(column) for column in zip(*means, strict=True))
    difference = bootstrap.of_families({name: [a - b for a, b, _ in those] for name, those in found.items() if those})
    return Figure(sum(map(len, found.values())), score, dense, difference, kept)


def _scores(sample: dict[str, Any]) -> dict[Case, tuple[float, int]]:
    """Score and tokens read, by case."""
    return {(name, rate): (score, read) for name, rate, score, read in sample["scores"]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _cases(result: dict[str, Any]) -> list[Case]:
    return [case for case in _scores(result["samples"][0]) if case[0] != DENSE]


def _lengths(result: dict[str, Any]) -> list[int]:
    return sorted({sample["length"] for sample in result["samples"]})


def _name(case: Case) -> str:
    name, rate = case
    return name if rate == 0 else f"{name}, keep {rate:g}"


def against_dense(result: dict[str, Any], case: Case) -> str:
    """A case over all lengths, with the interval of the difference from dense."""
    found = figure(result, case)
    _, low, high = found.difference
    return (
        f"score {100 * found.score:.0f}, dense {100 * found.dense:.0f} (difference {100 * low:+.0f} to"
        f" {100 * high:+.0f}); {found.kept:.2f} of the prompt kept"
    )


def describe(result: dict[str, Any]) -> str:
    """The conditions, and what each selector and task is."""
    settings = result["settings"]
    lines = [
        f"{len(result['samples'])} prompts (seed {settings['seed']}), target `{settings['target']}`, speculator"
        f" `{settings['speculator']}`, {settings['look_ahead']} look-ahead tokens, greedy decoding. Scores are from 0"
        " to 100: the mean over the families of tasks that dense can do"
        f" ({', '.join(able_families(result))}). In brackets: the 95 % interval of the paired difference from dense"
        " (bootstrap). Times were not measured." + (f" {result['note']}" if "note" in result else ""),
        "",
        *(f"- *{name}*: {what}." for name, what in result["selectors"].items()),
        "",
        *(f"- `{task}`: {what}" for task, what in result["tasks"].items()),
    ]
    return "\n".join(lines)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each length and case, and those over all lengths."""
    rows = []
    for length in (*_lengths(result), ALL_LENGTHS):
        for case in _cases(result):
            found = figure(result, case, length)
            _, low, high = found.difference
            score = f"{100 * found.score:.0f} ({100 * low:+.0f} to {100 * high:+.0f})"
            shown = f"{length:,}" if length else "all"
            rows.append([shown, str(found.n), _name(case), f"{found.kept:.2f}", f"{100 * found.dense:.0f}", score])
    return ["tokens", "n", "selector", "kept", DENSE, "score"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: the difference from dense by prompt length, with its interval. Right: the kept share."""
    lengths = _lengths(result)
    with plots.figure(path, result, panels=2) as (left, right):
        for case in _cases(result):
            if case[1]:
                continue
            found = [figure(result, case, length) for length in lengths]
            means = [100 * f.difference[0] for f in found]
            errors = [
                [100 * (f.difference[0] - f.difference[1]) for f in found],
                [100 * (f.difference[2] - f.difference[0]) for f in found],
            ]
            left.errorbar(lengths, means, yerr=errors, capsize=3, label=_name(case))
            right.plot(lengths, [f.kept for f in found], label=_name(case))
        left.axhline(0, color="black", linestyle="--", linewidth=1)
        left.set_title("points of the score: difference from dense")
        right.set_ylim(0, 1)
        right.set_title("share of the prompt that the target reads")
        for axis in (left, right):
            plots.prompt_axis(axis, lengths)
            axis.legend()
