"""The result of `skim eval --timed` for the terminal and the results page: quality over time, by family of tasks."""

from pathlib import Path
from typing import Any

from benchmarks.report import plots
from evals.results.advice import advise
from evals.results.comparison import ALL, Comparison, Figure
from evals.selection.selectors import DENSE

TIMES = (0.25, 0.5, 0.75, 1.0)
"""Shares of dense's time to the first token, for the comparison at equal time."""

_FAMILIES_IN_A_ROW = 2


def describe(result: dict[str, Any]) -> str:
    """The conditions, the advice, quality at equal time, and what each selector is."""
    settings, comparison = result["settings"], Comparison(result)
    fitted = [f"the prefill {100 * comparison.clock.prefill.error:.0f} %"]
    fitted += [f"{name} {100 * comparison.clock.select[name].error:.0f} %" for name in result["selectors"]]
    lines = [
        f"{len(result['samples'])} prompts of {', '.join(map(str, settings['lengths']))} tokens (seed"
        f" {settings['seed']}), target `{settings['target']}`, speculator `{settings['speculator']}`,"
        f" {settings['look_ahead']} look-ahead tokens, greedy decoding. Scores are from 0 to 100. In brackets: the 95 %"
        " interval of the paired difference from dense (bootstrap). *Kept* is the share of the prompt that the target"
        " reads after *" + next(iter(result["selectors"])) + "*. The time to the first token is that of a line through"
        f" {len(result['timings'])} cases that were timed alone and with cold caches; median deviation from the line:"
        f" {', '.join(fitted)}." + (f" {result['note']}" if "note" in result else ""),
        "",
        advise(comparison),
        "",
        *_at_equal_time(comparison, list(result["selectors"])),
        *(f"- *{name}*: {what}." for name, what in result["selectors"].items()),
    ]
    return "\n".join(lines)


def _at_equal_time(comparison: Comparison, selectors: list[str]) -> list[str]:
    """A table: the best mean score of each selector within a share of dense's time."""
    if not comparison.able:
        return []
    dense = comparison.figure(ALL, (DENSE, 1.0)).score
    rows = [
        "The best score within a share of dense's time to the first token, mean of the families that dense can do"
        f" (dense {100 * dense:.0f}):",
        "",
        "| " + " | ".join(["selector", *(f"{time:g}" for time in TIMES)]) + " |",
        "| " + " | ".join(["---"] * (len(TIMES) + 1)) + " |",
    ]
    for name in selectors:
        found = [comparison.best_within(ALL, name, time) for time in TIMES]
        rows.append(f"| {name} | " + " | ".join("-" if s is None else f"{100 * s:.0f}" for s in found) + " |")
    return [*rows, ""]


def against_dense(result: dict[str, Any], selector: str, rate: float) -> str:
    """The mean over the families, with the interval of the difference. rate: 0 if the selector chooses it."""
    figure = Comparison(result).figure(ALL, (selector, rate))
    _, low, high = figure.difference
    return (
        f"score {100 * figure.score:.0f}, dense {100 * figure.dense:.0f} (difference {100 * low:+.0f} to"
        f" {100 * high:+.0f}); {figure.kept:.2f} of the prompt kept; first token after {figure.time:.2f} of dense's"
        " time"
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one row per family and keep rate, and for the selectors that choose the rate one row each."""
    comparison, selectors = Comparison(result), list(result["selectors"])
    rows = []
    rates = sorted({rate for _, rate in comparison.cases})
    for family in [*([ALL] if comparison.able else []), *comparison.families]:
        for rate in rates:
            figures = {n: comparison.figure(family, (n, rate)) for n in selectors if (n, rate) in comparison.cases}
            first = next(iter(figures.values()))
            cells = [_shown(figures[name]) if name in figures else "" for name in selectors]
            shown = "chosen" if rate == 0 else f"{rate:g}"
            rows.append([family, str(first.n), shown, f"{first.kept:.2f}", f"{100 * first.dense:.0f}", *cells])
    return ["family", "n", "keep rate", "kept", DENSE, *selectors], rows


def _shown(figure: Figure) -> str:
    _, low, high = figure.difference
    return f"{100 * figure.score:.0f} ({100 * low:+.0f} to {100 * high:+.0f})"


def plot(result: dict[str, Any], path: Path) -> None:
    """Two panels per family: score over the time to the first token, and over the kept share; one line per selector."""
    comparison = Comparison(result)
    families = [*([ALL] if comparison.able else []), *comparison.families]
    rows = -(-len(families) // _FAMILIES_IN_A_ROW)
    with plots.figure(path, result, panels=2 * _FAMILIES_IN_A_ROW, rows=rows, height=2.2 * rows + 0.8) as axes:
        for axis in axes:
            axis.set_visible(False)
        for place, family in enumerate(families):
            _panel(axes[2 * place], comparison, family, list(result["selectors"]), "time")
            _panel(axes[2 * place + 1], comparison, family, list(result["selectors"]), "kept")
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(handles, labels, loc="outside upper center", ncols=5)
        axes[0].figure.supylabel("score")


def _panel(axis: Any, comparison: Comparison, family: str, selectors: list[str], over: str) -> None:
    axis.set_visible(True)
    dense = comparison.figure(family, (DENSE, 1.0))
    axis.axhline(dense.score, color="black", linestyle="--", linewidth=1, label=DENSE)
    for depth, name in enumerate(selectors):
        figures = [comparison.figure(family, (name, rate)) for rate in comparison.rates(name)]
        across, up = [getattr(figure, over) for figure in figures], [figure.score for figure in figures]
        # Colours repeat after the last one, so the lines of the next selectors are dotted.
        style = "-" if depth < len(plots.COLOURS) else ":"
        axis.plot(across, up, label=name, linestyle=style, linewidth=1.3, markersize=4, zorder=3 - depth / 10)
    axis.set(title=family if over == "time" else "", ylim=(-0.05, 1.05), xlim=(0, 1.05))
    axis.set_xlabel("time to first token ÷ dense" if over == "time" else "kept share", fontsize=8)
    axis.tick_params(labelsize=8)
