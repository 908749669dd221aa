"""The result of `skim bench recall` as a description, a table and a plot."""

from pathlib import Path
from typing import Any

from benchmarks import plots
from evals.mid_answer.measure import AS_MANY, FRESH, RECALLED, WAYS
from evals.mid_answer.recall import BEST, INTERVAL, MOST

TRIGGERS = {
    "rejection": "the first token of the target that differs from the drafter's",
    "interval": f"every {INTERVAL} tokens of the answer",
}


def describe(result: dict[str, Any]) -> str:
    """The conditions, what recalls found and cost, and what each way and task is."""
    settings = result["settings"]
    lines = [
        f"{settings['samples']} prompts per task of about {settings['prompt_tokens']} tokens, target"
        f" `{settings['target']}`, speculator `{settings['speculator']}`, keep rate {settings['keep_rate']:g}, greedy"
        f" decoding. The prompt is scored again at {TRIGGERS[settings['trigger']]}; of the {BEST} best chunks,"
        f" those that were dropped are added, at most {MOST} times per answer. *of dense*: right answers of"
        " those that are right dense. In brackets: 95 % intervals (Wilson). For each scoring, a speculator without a"
        " prefix cache (engine transformers) reads the whole prompt again.",
        "",
        *(_recalls(result, task) for task in result["tasks"]),
        *(f"- *{way}*: {what}." for way, what in WAYS.items()),
        "",
        *(f"- `{task}`: {what}" for task, what in result["tasks"].items()),
    ]
    return "\n".join(lines)


def _recalls(result: dict[str, Any], task: str) -> str:
    rows = {row["way"]: row for row in result["rows"] if row["task"] == task}
    recalled = rows[RECALLED]
    useful = recalled["needed"] / recalled["added"] if recalled["added"] else 0.0
    return (
        f"- `{task}`: right answers {rows[FRESH]['right']:.2f} without recalls, {recalled['right']:.2f} with them"
        f" ({recalled['repaired']} repaired, {recalled['harmed']} harmed), {rows[AS_MANY]['right']:.2f} with as many"
        f" tokens from the start. Per answer {recalled['looks']:.2f} scorings and {recalled['recalls']:.2f} recalls;"
        f" {useful:.0%} of the added chunks hold what the answer needs. {recalled['needless']} recalls were in answers"
        f" that are right without them. Per answer the target reads {recalled['read']:.0f} tokens for recalls, and the"
        f" speculator {recalled['scored']:.0f}."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each task and way."""
    columns = ["task", "way", "right", "of dense", "kept", "evidence kept"]
    rows = [
        [
            row["task"],
            row["way"],
            f"{row['right']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['of_dense']:.2f} of {row['dense_right']}",
            f"{row['kept']:.2f}",
            f"{row['evidence']:.2f}",
        ]
        for row in result["rows"]
    ]
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Right answers of each way, a panel per task."""
    tasks = list(result["tasks"])
    with plots.figure(path, result, panels=len(tasks)) as axes:
        for axis, task in zip(axes, tasks, strict=True):
            rows = [row for row in result["rows"] if row["task"] == task]
            errors = [[row["right"] - row["low"] for row in rows], [row["high"] - row["right"] for row in rows]]
            axis.bar([row["way"] for row in rows], [row["right"] for row in rows], yerr=errors, color=plots.COLOURS[0])
            axis.set_ylim(0, 1)
            axis.set_ylabel("right answers")
            axis.set_title(task)
