"""The `skim bench` commands: run a measurement of `benchmarks/`, show it as a table, write it as JSON and as a plot.

Lives here: one file per command, with its options. Not here: what is measured and how.
"""

import typer

from cluster.bench.channel import channel
from cluster.bench.decode import decode
from cluster.bench.goodput import goodput
from cluster.bench.overhead import overhead
from cluster.bench.scale import scale
from cluster.bench.scoring import scoring
from cluster.bench.ttft import ttft

app = typer.Typer(help="Measure on this machine; ratios from interleaved runs.", no_args_is_help=True)
for command in (ttft, goodput, decode, overhead, scoring, channel, scale):
    app.command()(command)
