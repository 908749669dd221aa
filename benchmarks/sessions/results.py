"""The result of `skim bench sessions`: first tokens by system and number of sessions, and how many each holds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from benchmarks.sessions.simulation import Simulated, System

OVER_IDLE = 2.0
"""A system holds so many sessions if their p95 is less than so many times that of one session on a stock server."""


def row_of(system: System, found: Simulated) -> dict[str, Any]:
    """cached: share of the prompts' tokens that the target had cached. skimmed: share of the turns. evicted, computed:
    the target's tokens per turn."""
    asked, times = found.asked, [turn.first_s for turn in found.asked]
    return {
        "system": system.name,
        "kv_bits": system.kv_bits,
        "sessions": found.users,
        "turns": len(asked),
        "hours": found.seconds / 3600,
        "mean_s": float(np.mean(times)),
        "p50_s": float(np.median(times)),
        "p95_s": float(np.percentile(times, 95)),
        "cached": sum(turn.cached for turn in asked) / sum(turn.size for turn in asked),
        "skimmed": sum(turn.kept < turn.size for turn in asked) / len(asked),
        "evicted": found.evicted / len(asked),
        "computed": found.computed / len(asked),
        "reasons": dict(Counter(turn.reason for turn in asked if turn.reason)),
    }


def held(rows: Iterable[Mapping[str, Any]], limit_s: float) -> int:
    """The most sessions, of the numbers tried, up to which the p95 of every number stays under the limit. rows: of one
    system, ascending."""
    most = 0
    for row in rows:
        if row["p95_s"] >= limit_s:
            break
        most = row["sessions"]
    return most


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each system and number of sessions."""
    columns = ["system", "sessions", "mean s", "p95 s", "/ stock", "cached", "skimmed", "evicted", "computed"]
    return columns, [
        [
            row["system"],
            f"{row['sessions']}",
            f"{row['mean_s']:.2f}",
            f"{row['p95_s']:.2f}",
            _over_stock(result["rows"], row),
            f"{row['cached']:.0%}",
            f"{row['skimmed']:.0%}",
            f"{row['evicted']:,.0f}",
            f"{row['computed']:,.0f}",
        ]
        for row in result["rows"]
    ]


def ratio(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> float | None:
    """The mean of a row divided by that of stock vLLM with the same numbers in its KV cache and as many sessions."""
    stock = System(kv_bits=row["kv_bits"]).name
    same = [one for one in rows if (one["system"], one["sessions"]) == (stock, row["sessions"])]
    return row["mean_s"] / same[0]["mean_s"] if same else None


def _over_stock(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> str:
    found = ratio(rows, row)
    return "" if found is None else f"{found:.2f}"


def describe(result: dict[str, Any]) -> str:
    """What was simulated or measured, and how many sessions each system holds."""
    settings, limit, idle = result["settings"], result["limit_s"], result["idle"]
    per_gpu = {
        name: f" ({one['per_gpu']:.1f} per GPU)" if "per_gpu" in one else "" for name, one in result["held"].items()
    }
    kept = "; ".join(f"{name} {one['sessions']}{per_gpu[name]}" for name, one in result["held"].items())
    return (
        f"{result['about']} Sessions: {result['traces']}, with prompts of at most {settings['longest']:,} tokens. Keep"
        f" rate {settings['keep_rate']:g} of what may be dropped. A session alone on a stock server has p95"
        f" {idle['p95_s']:.2f} s and mean {idle['mean_s']:.2f} s. Sessions held at p95 < {limit:.2f} s, of the numbers"
        f" tried: {kept}. */ stock*: the mean, divided by that of stock vLLM with as many bits and sessions. *Cached*:"
        " share of the prompts' tokens that the target had in its cache. *Skimmed*: share of the turns. *Evicted*,"
        " *computed*: tokens of the target per turn, with those that it reads for no client."
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """p95 and mean of the first token over the number of sessions."""
    systems = dict.fromkeys(row["system"] for row in result["rows"])
    with plots.figure(path, result, panels=2, height=4.8) as axes:
        for axis, (name, label) in zip(axes, (("mean_s", "mean"), ("p95_s", "p95")), strict=True):
            for system in systems:
                rows = [row for row in result["rows"] if row["system"] == system]
                axis.plot([row["sessions"] for row in rows], [row[name] for row in rows], label=system)
            axis.set(xlabel="sessions", ylabel=f"seconds to first token, {label}")
            plots.log_values(axis)
        axes[1].axhline(result["limit_s"], color="#555555", linewidth=1)
        axes[0].legend(fontsize=8)
