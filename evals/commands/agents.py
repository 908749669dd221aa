"""`skim bench agents`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.output import Files, measure
from benchmarks.commands.pair_options import DemoPair, Engine, Journal, SpeculatorOptions, TargetOptions
from cluster.commands.flags import grouped


@dataclass(frozen=True)
class AgentOptions:
    """A group of options (`cluster.commands.flags`)."""

    families: Annotated[str, typer.Option(metavar="FAMILY[,FAMILY...]", help="Families of conversations.")] = (
        "fact,correction,call,edit"
    )
    conversations: Annotated[int, typer.Option(min=1, help="Number of conversations per family.")] = 8
    turns: Annotated[
        int, typer.Option(min=6, max=12, help="Turns of a conversation, of which the last four are asked.")
    ] = 8
    length: Annotated[int, typer.Option(help="Tokens of the first asked prompt; with --bfcl of the longest one.")] = (
        3500
    )
    seed: Annotated[int, typer.Option(help="Seed of the conversations.")] = 0
    bfcl: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Ask turns of BFCL's conversations with long results, from bfcl-eval in this folder."
        ),
    ] = None
    engine: Engine = "vllm"
    target_options: TargetOptions = "{}"
    speculator_options: SpeculatorOptions = "{}"
    journal: Journal = None


@grouped
def agents(pair: DemoPair, options: AgentOptions, files: Files) -> None:
    """Right answers in the later turns of an agent's conversations: dense, by the default, and with catch-up."""
    from cluster.commands.flags import read_options
    from evals.agents import run as benchmark

    given = {
        **vars(options),
        "families": values(options.families, str, "--families"),
        "target_options": read_options(options.target_options, "--target-options"),
        "speculator_options": read_options(options.speculator_options, "--speculator-options"),
    }
    settings = benchmark.AgentSettings(**pair.names, **given)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)
