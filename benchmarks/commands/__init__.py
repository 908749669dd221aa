"""The `skim bench` commands: run a benchmark, print its table, and write its JSON file and its plot.

Lives here: one file per command, with its options. Not here: the measurements, which are in `benchmarks/`.
"""

import typer

from cluster.commands.lazy import lazy_group

NAMES = (
    "ttft",
    "turns",
    "replay",
    "goodput",
    "overload",
    "batch",
    "refusals",
    "hostile",
    "decode",
    "acceptance",
    "overhead",
    "cpu",
    "scoring",
    "channel",
    "scale",
    "explain",
    "evidence",
)

app = typer.Typer(
    cls=lazy_group({name: f"benchmarks.commands.{name}:{name}" for name in NAMES}),
    help="Measure speed on this machine. The systems that are compared take turns in one run.",
    no_args_is_help=True,
)


@app.callback()
def bench() -> None: ...
