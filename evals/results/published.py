"""The result of `skim eval --selectors 'default;BM25'` on tasks: dense, the default and BM25, a row for each task."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from evals.questions.results import Figure, against_dense, figure, outcomes, points, run_dense
from evals.questions.ways import DEFAULT
from evals.run.ask import Case
from evals.selection.selectors import DENSE


def groups(result: dict[str, Any]) -> dict[str, list[int]]:
    """The places of the samples of each group: each task, and all tasks of a family with several at each length."""
    found: dict[str, list[int]] = {}
    families: dict[str, set[str]] = {}
    for sample in result["samples"]:
        families.setdefault(sample["family"], set()).add(sample["task"])
    for family, tasks in families.items():
        for at, sample in enumerate(result["samples"]):
            if sample["family"] == family:
                found.setdefault(sample["task"], []).append(at)
        for length in sorted({sample["length"] for sample in result["samples"]}) if len(tasks) > 1 else ():
            name = f"{family}, {length:,} tokens"
            found[name] = [
                at for at, s in enumerate(result["samples"]) if (s["family"], s["length"]) == (family, length)
            ]
    return {name: members for name, members in found.items() if members}


def figures(result: dict[str, Any]) -> dict[str, dict[Case, Figure]]:
    """The figure of each case in each group. Each task counts once in a mean."""
    found = outcomes(result)
    return {
        name: {case: figure(answers[at] for at in members) for case, answers in found.items()}
        for name, members in groups(result).items()
    }


def fewest(result: dict[str, Any]) -> int:
    """The prompts of the task that has the fewest."""
    return min(Counter(sample["task"] for sample in result["samples"]).values())


def lost(result: dict[str, Any]) -> str:
    """The tasks in which the default scores less than dense, with the difference in points, the largest first."""
    tasks = {sample["task"] for sample in result["samples"]}
    by_task = {name: of[DEFAULT, 0.0].difference[0] for name, of in figures(result).items() if name in tasks}
    losing = sorted((mean, name) for name, mean in by_task.items() if 100 * mean <= -0.5)
    return (
        ", ".join(f"{name} {100 * mean:+.0f}" for mean, name in losing) or f"none of {len(result['samples'])} prompts"
    )


def describe(result: dict[str, Any]) -> str:
    """The conditions, the default against dense, the tasks that lose, and what each way is."""
    settings = result["settings"]
    pair = f"target `{settings['target']}`" + (
        " behind an endpoint" if settings["endpoint"] else f", speculator `{settings['speculator']}`"
    )
    dense, long = run_dense(result)
    lines = [
        f"{len(result['samples'])} prompts (seed {settings['seed']}), {pair}, greedy decoding, at most"
        f" {settings['max_tokens']} tokens an answer. The tasks are those of published benchmarks, made here; what"
        " differs from each is said with the task's code in `evals/tasks`. Scores are from 0 to 100 by the benchmark's"
        " metric. In brackets: the 95 % interval of the paired difference from dense (bootstrap). *Kept* is the share"
        " of the prompt that the target reads with the default.",
        "",
        f"The default, all tasks together: {against_dense(result)}. It runs {dense} of {long} prompts dense. It loses"
        f" points in: {lost(result)}.",
        "",
    ]
    return "\n".join([*lines, *(f"- *{name}*: {what}." for name, what in result["selectors"].items())])


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each group."""
    ways = [case for case in outcomes(result) if case[0] != DENSE]
    rows = []
    for name, of in figures(result).items():
        dense, default = of[DENSE, 1.0], of[DEFAULT, 0.0]
        cells = [f"{100 * of[case].score:.0f} ({points(of[case], '')})" for case in ways]
        rows.append([name, str(dense.n), f"{100 * dense.score:.0f}", *cells, f"{default.kept:.2f}"])
    return ["task", "n", DENSE, *(name if not rate else f"{name}, keep {rate:g}" for name, rate in ways), "kept"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """The scores of each task: a mark for dense and for each way."""
    tasks = dict.fromkeys(sample["task"] for sample in result["samples"])
    found = {name: of for name, of in figures(result).items() if name in tasks}
    with plots.figure(path, result, panels=1, height=0.28 * len(found) + 1.2) as (axis,):
        places = np.arange(len(found))
        for case, mark in zip(outcomes(result), "os^Dv<>", strict=False):
            axis.plot([100 * of[case].score for of in found.values()], places, mark, label=case[0], alpha=0.7)
        axis.set_yticks(places, labels=list(found))
        axis.invert_yaxis()
        axis.set(xlabel="score", xlim=(-3, 103))
        axis.legend()
