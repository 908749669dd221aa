"""`skim bench sessions`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.output import Files, measure
from cluster.commands.flags import grouped
from skim_common.errors import SkimError


@dataclass(frozen=True)
class SessionsOptions:
    """A group of options (`cluster.commands.flags`)."""

    traces: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Traces in kv-cache-tester's format. Default: drawn from their quantiles."),
    ] = None
    sessions: Annotated[str, typer.Option(help="Numbers of sessions that are tried. Default: 4,8,16,24,32,48,64.")] = ""
    keep_rate: Annotated[float, typer.Option(min=0.01, max=1, help="Share kept of what may be dropped.")] = 0.3
    seed: Annotated[int, typer.Option(help="Seed of drawn sessions.")] = 0


@dataclass(frozen=True)
class SimulationOptions:
    """A group of options of the simulation."""

    systems: Annotated[
        str, typer.Option(metavar="NAMES", help="Only these, with ; between them, such as 'stock;Skim, FP8 KV'.")
    ] = ""
    turns: Annotated[int, typer.Option(min=20, help="Turns that are counted for each number of sessions.")] = 600
    gpu: Annotated[str, typer.Option(help="a100, l40s, h100, h200 or b200.")] = "h100"
    ranks: Annotated[int, typer.Option(min=1, help="GPUs of the target.")] = 4
    offload_gib: Annotated[float, typer.Option(min=0, help="CPU memory for KV blocks, GiB.")] = 512.0
    longest: Annotated[int, typer.Option(min=4096, max=131_072, help="Tokens of the longest prompt.")] = 128_000


@grouped
def sessions(
    options: SessionsOptions,
    simulation: SimulationOptions,
    files: Files,
) -> None:
    """Sessions of agents that a KV cache holds: Skim and stock vLLM in the same memory, simulated at 70B."""
    own = dict(vars(options))
    numbers = tuple(sorted(values(own.pop("sessions"), int, "--sessions")))
    if numbers and numbers[0] < 1:
        raise SkimError("--sessions takes whole numbers from 1 up with commas between them")
    own |= {"sessions": numbers} if numbers else {}
    from benchmarks.sessions import sessions as simulated

    chosen = tuple(name.strip() for name in simulation.systems.split(";") if name.strip())
    names = [system.name for system in simulated.SYSTEMS]
    if unknown := set(chosen) - set(names):
        raise SkimError(f"--systems: there is no {min(unknown)}; choose from {'; '.join(names)}")
    planned = simulated.SessionsSettings(**{**vars(simulation), "systems": chosen}, **own)
    measure(simulated, lambda report: simulated.run(planned, report), files.json_file, files.plot_file)
