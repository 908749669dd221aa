"""The summary of a run of `benchmarks.scaling.scale`: waiting requests, which pool grew first, changes of direction.

Pure functions of the recorded `requests` (s: when sent; ttft_s: time to first token or None; failed) and `samples` (s;
for each pool, `POOL` is the number of running replicas and `POOL_asked` of those that run or start).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

POOLS = ("speculator", "target")
WAIT_S = 3.0
"""The wait that a request may have in each pool."""


def summary(
    settings: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    begins: Mapping[str, float],
    ends: float,
) -> dict[str, Any]:
    """The figures of a run, and `rows` with those of each part. settings: `ScaleSettings` as a dict. Times: seconds.

    short_pool: the pool with more work per request. short_pool_grew_first: whether it asked for a replica before the
    other pool. calm: no pool changed its direction more than once. Counted from the start of the step: first_growth_s
    by pool, and objective_met_again_after_s (None: the last request did not meet it).
    """
    step, after = begins["step"], begins["after"]
    middle = step + (after - step) / 2
    spans = {
        "before": (0.0, step),
        "step, first half": (step, middle),
        "step, second half": (middle, after),
        "after": (after, ends),
    }
    rows = [_row(name, requests, samples, *span) for name, span in spans.items()]
    sizes = {pool: np.array([sample[f"{pool}_asked"] for sample in samples if sample["s"] >= step]) for pool in POOLS}
    times = [sample["s"] - step for sample in samples if sample["s"] >= step]
    growth = {
        pool: next((at for at, size in zip(times, sizes[pool], strict=True) if size > sizes[pool][0]), None)
        for pool in POOLS
    }
    changes = {pool: direction_changes(size.tolist()) for pool, size in sizes.items()}
    objective = settings["speculator_s"] + settings["target_s"] + 2 * WAIT_S
    short, other = sorted(POOLS, key=lambda pool: -settings[f"{pool}_s"])
    return {
        "rows": rows,
        "objective_s": objective,
        "objective_met_again_after_s": _met_from(requests, step, objective),
        "short_pool": short,
        "short_pool_grew_first": _earlier(growth[short], growth[other]),
        "first_growth_s": growth,
        "direction_changes": changes,
        "calm": all(count <= 1 for count in changes.values()),
    }


def _earlier(this: float | None, other: float | None) -> bool:
    return this is not None and (other is None or this < other)


def _met_from(requests: Sequence[Mapping[str, Any]], step: float, objective: float) -> float | None:
    met_from = None
    for request in sorted((request for request in requests if request["s"] >= step), key=lambda request: request["s"]):
        if request["ttft_s"] is None or request["ttft_s"] > objective:
            met_from = None
        elif met_from is None:
            met_from = request["s"] - step
    return met_from


def direction_changes(sizes: Sequence[int]) -> int:
    """How often the size changed from growing to shrinking, or from shrinking to growing."""
    moves = np.diff(np.asarray(sizes))
    signs = np.sign(moves[moves != 0])
    return int((signs[1:] != signs[:-1]).sum())


def waiting(requests: Sequence[Mapping[str, Any]], at: float) -> int:
    """Number of requests that were sent by the time `at` and had no first token yet. Failed ones do not count."""
    return sum(
        request["s"] <= at < request["s"] + request["ttft_s"] for request in requests if request["ttft_s"] is not None
    )


def _row(
    name: str,
    requests: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    begin: float,
    end: float,
) -> dict[str, Any]:
    mine = [request for request in requests if begin <= request["s"] < end]
    ttfts = [request["ttft_s"] for request in mine if request["ttft_s"] is not None]
    seen = [sample for sample in samples if begin <= sample["s"] < end]
    return {
        "part": name,
        "requests": len(mine),
        "failed": sum(request["failed"] for request in mine),
        "ttft_median_s": float(np.median(ttfts)) if ttfts else None,
        "ttft_p90_s": float(np.percentile(ttfts, 90)) if ttfts else None,
        "most_waiting": max((waiting(requests, sample["s"]) for sample in seen), default=0),
        **{f"{pool}_at_end": seen[-1][pool] if seen else None for pool in POOLS},
    }
