"""The `Server-Timing` header (W3C Server Timing): the router writes it, clients read it. Milliseconds by part."""

from collections.abc import Mapping

# In the order in which they happen. The rest of the total is the router's own work, or decoding.
TIMING_PARTS = ("tokenize", "queue", "speculate", "select", "transfer", "prefill")
TOTAL = "total"
"""From the request's arrival until its first token, or its whole answer if it is not streamed, can leave."""


def write_server_timing(parts: Mapping[str, float]) -> str:
    """The header's value; parts that are missing are left out."""
    return ", ".join(f"{name};dur={parts[name]:.2f}" for name in (*TIMING_PARTS, TOTAL) if name in parts)


def read_server_timing(header: str) -> dict[str, float]:
    """Milliseconds by part; empty for an empty header."""
    parts = (part.partition(";dur=") for part in header.split(", ") if part)
    return {name: float(ms) for name, _, ms in parts}


def add_prefill(timings: dict[str, float], target: Mapping[str, float], elapsed_ms: float) -> None:
    """Split the wait for the first output into the target's queue and prefill time, and transfer (the rest).

    timings: the request's parts so far; the new parts are added. target: the parts that the target reported.
    """
    queue, prefill = target.get("queue", 0.0), target.get("prefill", elapsed_ms)
    away = max(0.0, elapsed_ms - prefill - queue)
    timings["queue"] = timings.get("queue", 0.0) + queue
    timings["transfer"] = timings.get("transfer", 0.0) + away
    timings["prefill"] = prefill
