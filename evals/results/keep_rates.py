"""The result of `skim eval` as a description, a table and a plot, for the terminal and the results page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from evals.selection.selectors import DENSE, SPECULATOR

JUDGED_AT = 0.2
"""Keep rate at which the description compares the selectors; Skim's default."""

CAN_DO = 0.9
"""Smallest dense score of a task that counts as one that the target can do."""

_IN_A_ROW = 4

Key = tuple[str, int, str, float]


def describe(result: dict[str, Any]) -> str:
    """The conditions, the comparison at the default keep rate, and what each selector is."""
    settings = result["settings"]
    pair = f"target `{settings['target']}`" + (
        " behind an endpoint" if settings["endpoint"] else f", speculator `{settings['speculator']}`"
    )
    lines = [
        f"Mean scores of {settings['samples']} prompts per task and length (seed {settings['seed']},"
        f" {settings['style']} style), {pair}, {settings['look_ahead']} look-ahead tokens, greedy decoding. In"
        " brackets: 95 % intervals (Wilson). Every selector keeps the chat template and the question, and as many"
        " tokens as the speculator's selection at that keep rate.",
        "",
        *_comparison(result),
        *(f"- *{name}*: {what}." for name, what in result["selectors"].items()),
    ]
    return "\n".join(lines)


def _comparison(result: dict[str, Any]) -> list[str]:
    """The speculator compared with dense and with random chunks, over the tasks that the target can do (if any)."""
    scores = _scores(result)
    able = [(t, n) for t, n, name, _ in scores if name == DENSE and scores[t, n, DENSE, 1.0]["score"] >= CAN_DO]
    if JUDGED_AT not in result["settings"]["keep_rates"] or not able:
        return []

    def differences(other: str, rate: float) -> str:
        points = [
            100 * (scores[*where, SPECULATOR, JUDGED_AT]["score"] - scores[*where, other, rate]["score"])
            for where in able
        ]
        return f"{min(points):+.1f} to {max(points):+.1f} points"

    against = f"speculator against dense {differences(DENSE, 1.0)}"
    if "random" in result["selectors"]:
        against += f", against random chunks {differences('random', JUDGED_AT)}"
    what = f"the {len(able)} tasks and lengths that the target can do (dense {CAN_DO:.2f} or better)"
    return [f"At keep rate {JUDGED_AT}, over {what}: {against}.", ""]


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per task, length and keep rate."""
    scores, selectors = _scores(result), list(result["selectors"])
    rows = []
    for task, length in _panels(result):
        for rate in _rates(result):
            cells = [scores[task, length, DENSE, 1.0]]
            cells += [_at_rate(scores, task, length, name, rate) for name in selectors]
            dense, chosen, *others = cells
            shown = [_with_interval(dense), _with_interval(chosen), *(f"{cell['score']:.2f}" for cell in others)]
            rows.append([task, str(length), _shown(rate), f"{chosen['kept']:.2f}", *shown])
    return ["task", "tokens", "keep rate", "kept", DENSE, *selectors], rows


def _with_interval(cell: dict[str, Any]) -> str:
    return f"{cell['score']:.2f} ({cell['low']:.2f}-{cell['high']:.2f})"


def plot(result: dict[str, Any], path: Path) -> None:
    """Score by keep rate: one panel per task and length, one line per selector, and dense as a dashed line."""
    scores, settings = _scores(result), result["settings"]
    width = min(_IN_A_ROW, len(settings["tasks"]))
    in_rows = [settings["tasks"][i : i + width] for i in range(0, len(settings["tasks"]), width)]
    rows = [(length, tasks) for length in settings["lengths"] for tasks in in_rows]
    with plots.figure(path, result, panels=width, rows=len(rows), height=2.3 * len(rows) + 0.7) as axes:
        for axis in axes:
            axis.set_visible(False)
        for row, (length, tasks) in enumerate(rows):
            for column, task in enumerate(tasks):
                axis = axes[row * width + column]
                axis.set_visible(True)
                _panel(axis, scores, task, length, result)
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(handles, labels, loc="outside upper center", ncols=4)
        axes[0].figure.supxlabel("keep rate")
        axes[0].figure.supylabel("score")


def _panel(axis: Any, scores: dict[Key, dict[str, Any]], task: str, length: int, result: dict[str, Any]) -> None:
    rates = _rates(result)
    axis.axhline(scores[task, length, DENSE, 1.0]["score"], color="black", linestyle="--", linewidth=1, label=DENSE)
    for depth, name in enumerate(result["selectors"]):
        values = [_at_rate(scores, task, length, name, rate)["score"] for rate in rates]
        # The speculator's line is drawn on top of the others.
        axis.plot(rates, values, label=name, linewidth=1.5, markersize=4, zorder=3 - depth / 10)
    axis.set(title=f"{task.replace('_', ' ')}, {length}", xscale="log", ylim=(-0.05, 1.05))
    axis.set_xticks(rates, labels=[_shown(rate) for rate in rates], minor=False)
    axis.minorticks_off()
    axis.tick_params(labelsize=8)


def _scores(result: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    return {(cell["task"], cell["length"], cell["selector"], cell["keep_rate"]): cell for cell in result["cells"]}


def _at_rate(scores: dict[Key, dict[str, Any]], task: str, length: int, name: str, rate: float) -> dict[str, Any]:
    """The selector's cell; one that chooses the rate itself has the same cell at every rate."""
    return scores.get((task, length, name, rate)) or scores[task, length, name, 0.0]


def _shown(rate: float) -> str:
    return f"{rate:g}" if rate < 1 else "auto"


def _panels(result: dict[str, Any]) -> Iterator[tuple[str, int]]:
    settings = result["settings"]
    return ((task, length) for task in settings["tasks"] for length in settings["lengths"])


def _rates(result: dict[str, Any]) -> list[float]:
    """The keep rates below 1; without any, all selectors choose the rate themselves, and 1 stands for their choice."""
    return [rate for rate in result["settings"]["keep_rates"] if rate < 1] or [1.0]
