"""What one way of a request adds to another: paired differences, and where the time to the first token goes."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.chat_client import Timed

PARTS = ("tokenize", "route", "select_hop", "generate_hop", "http", "queue", "speculate", "select", "prefill")
"""The first five are the way, the other four the engines' work."""

WAY = PARTS[:5]


def added(times: Mapping[str, Sequence[Timed]]) -> dict[str, Any]:
    """What each way adds to `in_process`: median and quartiles of the differences, prompt by prompt; ratio of medians.

    times: by way, in one order of prompts.
    """
    base = times["in_process"]
    return {
        "added": {
            way: {name: _difference(base, taken, name) for name in ("first_ms", "end_ms")}
            for way, taken in times.items()
            if way != "in_process"
        }
    }


def _difference(base: Sequence[Timed], other: Sequence[Timed], name: str) -> dict[str, float]:
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(base, other, strict=True)]
    low, middle, high = statistics.quantiles([b - a for a, b in pairs], n=4, method="inclusive")
    medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
    return {"median": middle, "low": low, "high": high, "ratio": medians[1] / medians[0]}


async def explained(session: aiohttp.ClientSession, url: str, timed: Timed) -> dict[str, float]:
    """The parts of one request that went through the router at `url`; they sum up to its `first_ms`.

    `Server-Timing` has the engines' parts, both hops as one (`transfer`) and their `total`; the explain view has the
    first hop alone. What is left of the router's total is its own work (`route`); of the client's time, HTTP.
    """
    view = f"{url.removesuffix('/chat/completions')}/requests/{timed.request_id}/selection"
    async with session.get(view) as response:
        response.raise_for_status()
        select_hop = (await response.json())["timings_ms"]["transfer"]
    return split(timed, select_hop)


def split(timed: Timed, select_hop: float) -> dict[str, float]:
    """As `explained`, from the explain view's part."""
    parts = dict(timed.parts)
    total, transfer = parts.pop("total"), parts.pop("transfer")
    hops = {"select_hop": select_hop, "generate_hop": transfer - select_hop}
    route = total - transfer - sum(parts.values())
    return {**parts, **hops, "route": route, "http": timed.first_ms - total}


def parts_table(in_process: Sequence[Timed], through: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Medians in milliseconds of each part on both ways, and their difference; 0 where a way has no such part."""
    rows = []
    for part in PARTS:
        ours = statistics.median(parts.get(part, 0.0) for parts in through)
        theirs = statistics.median(timed.parts.get(part, 0.0) for timed in in_process)
        rows.append({"part": part, "skim_ms": ours, "in_process_ms": theirs, "added_ms": ours - theirs})
    return rows
