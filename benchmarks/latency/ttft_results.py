"""The result of `skim bench ttft` as a description, a table and a plot."""

from pathlib import Path
from typing import Any

from benchmarks.report import plots
from benchmarks.report.statistics import in_words


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    models, settings, defaults = result["models"], result["settings"], result["defaults"]
    window, dense_below = (defaults[name] for name in ("window_tokens", "min_prompt_tokens"))
    flops = ", ".join(f"{ratio:.1f} at {int(length):,}" for length, ratio in result["flop_ratios"].items())
    return (
        f"Random weights, float32: target {models['target']}, speculator {models['speculator']}. {settings['rounds']} "
        "rounds, one request at a time: a chat with a document and a question, a few tokens shorter than given. Every "
        "engine uses all cores and keeps the memory that it frees. Ratios are medians over the rounds, with their "
        f"range. The speculator reads prompts in windows of at most {window:,} tokens; its head profile has all heads "
        "of its last layer. *Limit*: the speculator's forward over the prompt, in windows, plus the target's forward "
        "over the kept tokens, each measured alone. Keep rate "
        '"default": the request sets no option; '
        f"prompts under {dense_below:,} tokens ran dense. If Skim runs dense, as at keep rate 1, its limit is the "
        "target's forward alone. Dense / limit then shows what the stock server adds: on CPU, vLLM runs its engine's "
        "worker in a second process. Counted in floating-point operations, dense / limit at keep rate "
        f"{min(settings['keep_rates'])} would be {flops} tokens."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per prompt length and keep rate."""
    columns = ["prompt", "keep rate", "kept", "dense ms", "Skim ms", "limit ms", "Skim / limit", "dense / Skim"]
    columns += ["dense / limit"]
    rows = [
        [
            f"{row['prompt_tokens']:,}",
            "default" if row["keep_rate"] is None else f"{row['keep_rate']}",
            f"{row['kept_tokens']:,}",
            *(f"{row[name]:,.0f}" for name in ("dense_ms", "skim_ms", "limit_ms")),
            *(in_words(row[name]) for name in ("skim_over_limit", "dense_over_skim")),
            f"{row['dense_over_limit']['median']:.2f}",
        ]
        for row in result["rows"]
    ]
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: seconds by prompt length for dense, Skim and limit at the default keep rate, or at the lowest one if the
    default was not measured. Right: dense / Skim by rate.
    """
    rows = [row for row in result["rows"] if row["keep_rate"] is not None]
    rates = sorted({row["keep_rate"] for row in rows})
    default = result["defaults"]["keep_rate"]
    shown = default if default in rates else rates[0]
    at_shown = [row for row in rows if row["keep_rate"] == shown]
    with plots.figure(path, result, panels=2) as [times, ratios]:
        lengths = [row["prompt_tokens"] for row in at_shown]
        for name, label in (
            ("dense_ms", "dense vLLM"),
            ("skim_ms", f"Skim, keep {shown}"),
            ("limit_ms", "limit: the two forwards alone"),
        ):
            times.plot(lengths, [row[name] / 1e3 for row in at_shown], label=label)
        times.set(ylabel="seconds to first token", ylim=(0, None))
        for rate in rates:
            at_rate = [row for row in rows if row["keep_rate"] == rate]
            medians = [row["dense_over_skim"]["median"] for row in at_rate]
            ratios.plot([row["prompt_tokens"] for row in at_rate], medians, label=f"keep {rate}")
        ratios.axhline(1, color="black", linewidth=1)
        ratios.set(ylabel="times as fast as dense vLLM", ylim=(0, None))
        for axes in (times, ratios):
            plots.prompt_axis(axes, lengths)
        times.legend()
        ratios.legend(loc="center left", bbox_to_anchor=(1, 0.5))
