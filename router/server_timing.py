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
