"""The `skim bench` commands: run a benchmark, print its table, and write its JSON file and its plot.

Lives here: the table of the commands, and the options that several of them share. Each subject's folder has its
commands.
"""

import typer

from cluster.commands.lazy import lazy_group

COMMANDS = {
    "benchmarks.latency.commands": (
        "ttft",
        "turns",
        "overhead",
        "forecast",
    ),
    "benchmarks.load.commands": (
        "goodput",
        "batch",
        "interference",
    ),
    "benchmarks.sessions.commands": ("sessions",),
    "benchmarks.engines.commands": ("decode",),
    "benchmarks.scaling.commands": ("scale",),
    "evals.commands.agents": ("agents",),
    "evals.commands.evidence": ("evidence",),
    "evals.commands.forms": ("forms",),
    "evals.commands.questions": ("questions",),
}

app = typer.Typer(
    cls=lazy_group({None: {name: f"{module}:{name}" for module, names in COMMANDS.items() for name in names}}),
    help="Measure speed on this machine. The systems that are compared take turns in one run.",
    no_args_is_help=True,
)


@app.callback()
def bench() -> None: ...
