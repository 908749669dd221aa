"""What `skim bench forecast` shows of its prompts."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import plots

LONG_MS = 200
"""Shorter times to the first token are not counted: noise and the hops of a request are a large part of them."""
LOW, HIGH = 0.8, 1.25
"""A forecast between these multiples of the real time is right."""
MUCH = 1.2
"""The other mode was much sooner if the chosen one took this many times as long, or more."""

One = Mapping[str, Any]


def ratios(prompts: Iterable[One], *modes: str) -> list[float]:
    """The forecasts divided by the real times that are long enough to count. A forecast begins when the prompt is
    tokenized; a client waits for that too."""
    return [
        (one["estimates"][mode] + one["parts"][mode].get("tokenize", 0.0)) / one["first_ms"][mode]
        for one in prompts
        for mode in modes or ("dense", "speculative")
        if mode in one["estimates"] and one["first_ms"][mode] > LONG_MS
    ]


def right(found: Sequence[float]) -> float:
    """The share of the ratios that are right."""
    return statistics.mean(LOW <= ratio <= HIGH for ratio in found) if found else 1.0


def regrets(prompts: Iterable[One]) -> list[float]:
    """The times of the chosen modes, divided by those of the other ones."""
    return [one["first_ms"][one["chosen"]] / one["first_ms"][_other(one["chosen"])] for one in prompts]


def _other(mode: str) -> str:
    return "dense" if mode == "speculative" else "speculative"


def groups(result: Mapping[str, Any]) -> dict[tuple[str, str], list[One]]:
    """The prompts by shape and read, in their order."""
    found: dict[tuple[str, str], list[One]] = {}
    for one in result["prompts"]:
        found.setdefault((one["shape"], one["read"]), []).append(one)
    return found


def describe(result: dict[str, Any]) -> str:
    settings, prompts = result["settings"], result["prompts"]
    worst = min((right(ratios(group)), shape) for shape, group in _by_shape(prompts).items())
    much = sum(regret > MUCH for regret in regrets(prompts))
    loads = [one["load"] for one in prompts]
    return (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['dtype']}; every prompt"
        " in the chosen mode and, with the same caches, in the other one. *Forecast / real*: median, lowest to highest,"
        f" of the first tokens that took over {LONG_MS} ms. *Right*: the share of them within {LOW} to {HIGH}."
        " The time to tokenize, which is over when a forecast is made, counts in both."
        f" *Regret*: the chosen mode's time / the other's, the largest.\n\nRight: {right(ratios(prompts)):.0%} of"
        f" {len(ratios(prompts))} forecasts, of the worst shape ({worst[1]}) {worst[0]:.0%}. The other mode was over"
        f" {MUCH - 1:.0%} sooner for {much} of {len(prompts)} prompts. Load of the machine: {min(loads):.1f} to"
        f" {max(loads):.1f}."
    )


def _by_shape(prompts: Iterable[One]) -> dict[str, list[One]]:
    found: dict[str, list[One]] = {}
    for one in prompts:
        found.setdefault(one["shape"], []).append(one)
    return found


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per shape and read."""
    columns = ["shape", "read", "prompt", "kept", "dense ms", "speculative ms", "forecast / real, dense"]
    columns += ["forecast / real, speculative", "right", "chosen", "regret"]
    rows = []
    for (shape, read), group in groups(result).items():
        chosen = Counter(f"{one['chosen']}, {one['reason']}" for one in group)
        rows.append(
            [
                shape,
                read,
                *(f"{statistics.median(one[name] for one in group):,.0f}" for name in ("prompt_tokens", "kept_tokens")),
                *(
                    f"{statistics.median(one['first_ms'][mode] for one in group):,.0f}"
                    for mode in ("dense", "speculative")
                ),
                *(_spread(ratios(group, mode)) for mode in ("dense", "speculative")),
                f"{right(ratios(group)):.0%}",
                "; ".join(f"{mode} ({count})" for mode, count in chosen.items()),
                f"{max(regrets(group)):.2f}",
            ]
        )
    return columns, rows


def _spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "-"


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: forecast over real time, of each prompt. Right: time of the chosen mode over that of the other."""
    with plots.figure(path, result, panels=2, height=5.0) as [forecasts, choices]:
        shapes = _by_shape(result["prompts"])
        for mode in ("dense", "speculative"):
            points = [(place, ratio) for place, group in enumerate(shapes.values()) for ratio in ratios(group, mode)]
            forecasts.plot([p for p, _ in points], [r for _, r in points], linestyle="", label=mode)
        points = [(place, regret) for place, group in enumerate(shapes.values()) for regret in regrets(group)]
        choices.plot([p for p, _ in points], [r for _, r in points], linestyle="")
        for axes, bounds in ((forecasts, (LOW, HIGH)), (choices, (MUCH,))):
            plots.log_values(axes)
            axes.set_xticks(range(len(shapes)), labels=list(shapes), rotation=45, ha="right")
            for bound in bounds:
                axes.axhline(bound, color=plots.COLOURS[-1], linewidth=1)
        forecasts.set(ylabel="forecast / real time to first token")
        choices.set(ylabel="time of the chosen mode / the other's")
        forecasts.legend()
