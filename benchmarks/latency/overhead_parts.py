"""What one request path adds to another: paired differences, and the parts of the time to first token."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.harness.chat_client import Timed

PARTS = ("tokenize", "route", "select_hop", "generate_hop", "http", "queue", "speculate", "select", "prefill")
"""The first five are outside the engines, the other four are the engines' work."""

OUTSIDE_ENGINES = PARTS[:5]


def added(times: Mapping[str, Sequence[Timed]]) -> dict[str, Any]:
    """What each path adds to `in_process`: median and quartiles of the differences per prompt, and ratio of medians.

    times: by path, with the prompts in the same order.
    """
    base = times["in_process"]
    return {
        "added": {
            path: {name: _difference(base, taken, name) for name in ("first_ms", "end_ms")}
            for path, taken in times.items()
            if path != "in_process"
        }
    }


def _difference(base: Sequence[Timed], other: Sequence[Timed], name: str) -> dict[str, float]:
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(base, other, strict=True)]
    low, middle, high = statistics.quantiles([b - a for a, b in pairs], n=4, method="inclusive")
    medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
    return {"median": middle, "low": low, "high": high, "ratio": medians[1] / medians[0]}


async def explained(session: aiohttp.ClientSession, url: str, timed: Timed) -> dict[str, float]:
    """The parts of one request to the router at `url`. Their sum is its `first_ms`.

    `Server-Timing` has the engines' parts, both hops together (`transfer`) and the `total`. The view of the selection
    has the first hop alone. The rest of the router's total is its own work (`route`), the rest of the client's time is
    HTTP.
    """
    view = f"{url.removesuffix('/chat/completions')}/requests/{timed.request_id}/selection"
    async with session.get(view) as response:
        response.raise_for_status()
        select_hop = (await response.json())["timings_ms"]["transfer"]
    return split(timed, select_hop)


def split(timed: Timed, select_hop: float) -> dict[str, float]:
    """As `explained`, from the first hop's milliseconds."""
    parts = dict(timed.parts)
    total, transfer = parts.pop("total"), parts.pop("transfer")
    hops = {"select_hop": select_hop, "generate_hop": transfer - select_hop}
    route = total - transfer - sum(parts.values())
    return {**parts, **hops, "route": route, "http": timed.first_ms - total}


def parts_table(in_process: Sequence[Timed], through: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """The medians of each part on both paths in milliseconds, and their difference. A missing part counts as 0."""
    rows = []
    for part in PARTS:
        ours = statistics.median(parts.get(part, 0.0) for parts in through)
        theirs = statistics.median(timed.parts.get(part, 0.0) for timed in in_process)
        rows.append({"part": part, "skim_ms": ours, "in_process_ms": theirs, "added_ms": ours - theirs})
    return rows
