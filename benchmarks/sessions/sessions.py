"""`skim bench sessions`: which numbers of sessions are simulated, and with which systems."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.sessions.results import OVER_IDLE, describe, held, plot, row_of, table
from benchmarks.sessions.simulation import Hardware, System, engines, simulate
from benchmarks.sessions.traces import Session, drawn, read
from cluster.plan import gpu_named

__all__ = ["describe", "plot", "run", "table"]

SYSTEMS = tuple(
    System(skim, catch_up, kv_bits, offload)
    for kv_bits in (16, 8)
    for skim, catch_up, offload in (
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (False, False, True),
        (True, True, True),
    )
)
DRAWN = 512
BEYOND = 2
"""So many numbers of sessions are simulated beyond the one that a system holds."""


@dataclass(frozen=True)
class SessionsSettings:
    """traces: a folder; None draws sessions. sessions: the numbers that are tried, ascending. turns: counted turns of
    each simulation. systems: names; none for all."""

    traces: Path | None = None
    sessions: tuple[int, ...] = (4, 8, 16, 24, 32, 48, 64)
    systems: tuple[str, ...] = ()
    turns: int = 600
    gpu: str = "h100"
    ranks: int = 4
    keep_rate: float = 0.3
    offload_gib: float = 512.0
    longest: int = 128_000
    seed: int = 0


def run(settings: SessionsSettings, progress: Progress = silent) -> dict[str, Any]:
    """Simulate. `rows`: those of `results.row_of`. `held`: the sessions of each system. Raises SkimError."""
    began, gpu = machine(), gpu_named(settings.gpu)
    hardware = Hardware(gpu, settings.ranks, settings.offload_gib)
    longest = settings.longest
    sessions = read(settings.traces, longest) if settings.traces else drawn(DRAWN, longest, settings.seed)
    progress("one session alone", 0)
    idle = row_of(System(), simulate(sessions, 1, System(), hardware, settings.keep_rate, settings.turns))
    limit = OVER_IDLE * idle["p95_s"]
    rows, found = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    chosen = [system for system in SYSTEMS if not settings.systems or system.name in settings.systems]
    for place, system in enumerate(chosen):
        progress(system.name, place / len(chosen))
        of_system = list(_rows(settings, sessions, system, hardware, limit))
        rows += of_system
        most = held(of_system, limit)
        found[system.name] = {"sessions": most, "per_gpu": most / (settings.ranks + system.skim)}
    turns = sum(len(session.turns) for session in sessions)
    source = f"{len(sessions)} {'traces' if settings.traces else 'drawn ones'} with {turns:,} turns"
    return {
        "machine": began,
        "settings": asdict(settings) | {"traces": settings.traces and settings.traces.name},
        "traces": source,
        "about": (
            f"Simulated: Llama 3.1 70B on {settings.ranks} x {gpu.name}, and for Skim 3.2 1B on one more. The stock"
            f" server's KV cache holds {engines(hardware, System())[0].tokens:,} tokens in bfloat16 and twice as many"
            f" in FP8; Skim's two caches have the same bytes together. Offload: {settings.offload_gib:g} GiB."
        ),
        "idle": idle,
        "limit_s": limit,
        "rows": rows,
        "held": found,
    }


def _rows(
    settings: SessionsSettings, sessions: Sequence[Session], system: System, hardware: Hardware, limit: float
) -> Iterator[dict[str, Any]]:
    beyond = 0
    for users in settings.sessions:
        row = row_of(system, simulate(sessions, users, system, hardware, settings.keep_rate, settings.turns))
        yield row
        beyond += row["p95_s"] >= limit
        if beyond == BEYOND:
            return
