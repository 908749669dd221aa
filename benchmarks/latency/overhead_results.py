"""The result of `skim bench overhead` as a description, a table and a plot."""

from pathlib import Path
from typing import Any

from benchmarks.latency.overhead_parts import OUTSIDE_ENGINES
from benchmarks.report import plots

_TITLES = {"skim_ids": "skim, token ids", "ray_serve_llm": "ray.serve.llm"}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, and the parts of the time to first token of one request."""
    settings = result["settings"]
    lines = [
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, prompts of {settings['prompt_tokens']} "
        f"tokens, answers of {settings['answer_tokens']} tokens, keep rate {settings['keep_rate']}, "
        f"at least {settings['requests']} requests per row. *In-process*: the same prompts, as token ids, to engines in"
        " the process of the benchmark. *Added*: median of the differences to in-process, with quartiles. The path"
        " *skim, token ids* sends token ids too, so router, Ray and network are all that it adds. The path *skim* sends"
        " chat requests, which the router also tokenizes."
    ]
    if "ray_serve_llm_failed" in result:
        lines.append(f"ray.serve.llm did not run: {result['ray_serve_llm_failed']}.")
    for kind, parts in result["parts"].items():
        added_ms = ", ".join(f"{row['part'].replace('_', ' ')} {row['added_ms']:.1f}" for row in parts)
        lines.append(
            f"Parts that a chat request adds to the first token, 1 at a time, {kind} engines, median ms: {added_ms}."
        )
    return "\n\n".join(lines)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per path other than in_process."""
    columns = ["engines", "prompt", "answer", "at a time", "path", "in-process first token ms", "first token ms"]
    columns += ["added ms", "first token / in-process", "added to the last token ms", "ms per token (in-process)"]
    rows = []
    for row in result["rows"]:
        base = row["paths"]["in_process"]
        for path, difference in row["added"].items():
            taken, first, end = row["paths"][path], difference["first_ms"], difference["end_ms"]
            cells = [row["engine"], row["mode"], "streamed" if row["stream"] else "whole", str(row["concurrency"])]
            cells.append(_TITLES.get(path, path))
            cells += [f"{base['first_ms']:.1f}", f"{taken['first_ms']:.1f}", _spread(first), f"{first['ratio']:.2f}"]
            cells += [_spread(end), f"{taken['ms_per_token']:.2f} ({base['ms_per_token']:.2f})"]
            rows.append(cells)
    return columns, rows


def _spread(difference: dict[str, float]) -> str:
    return f"{difference['median']:.1f} ({difference['low']:.1f} to {difference['high']:.1f})"


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: parts outside the engines that a chat request adds to the first token. Right: the sum by concurrency."""
    with plots.figure(path, result, panels=2, height=4.2) as [parts, lines]:
        for index, (kind, rows) in enumerate(result["parts"].items()):
            left = 0.0
            shown = [row for row in rows if row["part"] in OUTSIDE_ENGINES]
            for colour, row in zip(plots.COLOURS, shown, strict=False):
                label = row["part"].replace("_", " ") if index == 0 else None
                parts.barh(f"{kind} engines", row["added_ms"], left=left, color=colour, label=label)
                left += row["added_ms"]
        parts.set(xlabel="added ms to the first token, 1 at a time", title="Parts outside the engines")
        parts.grid(axis="y", visible=False)
        parts.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=9, columnspacing=1)
        series: dict[str, list[tuple[int, float]]] = {}
        for row in result["rows"]:
            for name, difference in row["added"].items():
                if row["stream"]:
                    label = f"{_TITLES.get(name, name)}, {row['mode']}, {row['engine']}"
                    series.setdefault(label, []).append((row["concurrency"], difference["first_ms"]["median"]))
        for label, points in series.items():
            lines.plot(*zip(*sorted(points), strict=True), label=label)
        sizes = sorted({row["concurrency"] for row in result["rows"]})
        lines.set(xlabel="requests at a time", ylabel="added ms", title="By concurrency", xscale="log")
        lines.set_yscale("symlog", linthresh=10)  # noise of the engines can make it negative
        lines.set_xticks(sizes, labels=map(str, sizes), minor=False)
        lines.minorticks_off()
        lines.margins(x=0.08, y=0.08)
        lines.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=9, columnspacing=1)
