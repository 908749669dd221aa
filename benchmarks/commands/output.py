"""Code that all `skim bench` commands share: the options --json and --plot, the progress bar and the table."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from cluster.json_file import write_json

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result to this JSON file.")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the result into this PNG file.")
]


@dataclass(frozen=True)
class Files:
    """Where a result goes: a group of options (`cluster.commands.flags`)."""

    json_file: JsonFile = None
    plot_file: PlotFile = None


Report = Callable[[str, float], None]
"""Same as `benchmarks.report.progress.Progress`; defined here so that --help does not import the benchmarks."""


class Benchmark(Protocol):
    """Functions that each benchmark's module has besides `run`."""

    def describe(self, result: dict[str, Any], /) -> str: ...
    def table(self, result: dict[str, Any], /) -> tuple[list[str], list[list[str]]]: ...
    def plot(self, result: dict[str, Any], path: Path, /) -> None: ...


def measure(
    benchmark: Benchmark, run: Callable[[Report], dict[str, Any]], json_file: Path | None, plot_file: Path | None
) -> None:
    """Call `run`, print the table of its result, and write the JSON file and the plot if they are wanted.

    benchmark: the module that describes the result. Raises SkimError before the run if a plot is wanted and matplotlib
    is missing.
    """
    from benchmarks.report import plots

    if plot_file is not None:
        plots.require()
    console = Console(highlight=False)
    with progress_bar(console) as report:
        result = run(report)
    result["command"] = shlex.join(["skim", *sys.argv[1:]])
    columns, rows = benchmark.table(result)
    # Ten columns must fit into 80 characters. The first one names the row, so it is not wrapped.
    first = Column(columns[0], no_wrap=True)
    table = Table(first, *columns[1:], header_style="bold", box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    for row in rows:
        table.add_row(*row)
    tasks = [f"- `{task}`: {what}" for task, what in result.get("tasks", {}).items()]
    console.print("\n".join([benchmark.describe(result), *tasks]), markup=False)
    console.print(table)
    if json_file is not None:
        write_json(json_file, result)
        console.print(f"Wrote {json_file}", markup=False, soft_wrap=True)
    if plot_file is not None:
        benchmark.plot(result, plot_file)
        console.print(f"Drew {plot_file}", markup=False, soft_wrap=True)


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A progress bar over the whole run. Gives a function that sets its text and its share."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
