"""The `skim bench` commands: run a measurement of `benchmarks/`, show it as a table, write it as JSON and as a plot.

Lives here: one file per command, with its options. Not here: what is measured and how.
"""

import typer

from cluster.commands.lazy import lazy_group

NAMES = ("ttft", "goodput", "decode", "overhead", "scoring", "channel", "scale")

app = typer.Typer(
    cls=lazy_group({name: f"benchmarks.commands.{name}:{name}" for name in NAMES}),
    help="Measure on this machine; ratios from interleaved runs.",
    no_args_is_help=True,
)


@app.callback()
def bench() -> None: ...
