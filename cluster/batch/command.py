"""The options of `skim batch`. `python -m cluster.batch` takes the same."""

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cluster.commands.grouped import grouped
from skim_common.errors import SkimError

ENDPOINT = "http://127.0.0.1:8000"
EXTRA = ("fsspec", "httpx2", "openai", "pandas", "pyarrow")

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a job. endpoint: a running one; config: a deployment to start; for a job, one of them is None.

    address: the Ray cluster to join; None starts one on this machine.
    """

    input: Annotated[str, typer.Option("--input", metavar="FILE", help="Rows in OpenAI's Batch format: path or URL.")]
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="File for the answers: path or URL.")] = ""
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Running endpoint that answers the rows.", show_default=ENDPOINT)
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.yaml", help="Deployment to start for the batch, instead of --endpoint."),
    ] = None
    concurrency: Annotated[int, typer.Option(min=1, help="Requests sent at the same time.")] = 32
    max_retries: Annotated[int, typer.Option(min=0, help="Retries of a row, with growing waits.")] = 8
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that one try may take.")] = 3600.0
    address: Annotated[
        str | None, typer.Option(envvar="RAY_ADDRESS", help="Ray cluster to join. Default: a new one.")
    ] = None


@grouped
def batch(
    options: BatchOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the input; exit code 1 if a row is unusable.")
    ] = False,
) -> None:
    """Answer a file of requests. After a kill, the same command continues where it stopped.

    If the endpoint needs an API key, set OPENAI_API_KEY.
    """
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise SkimError(f"batch jobs need {', '.join(missing)}: install Skim with its extra `batch`")
    from cluster.batch.job import check_input, run_batch

    def print_line(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    if dry_run:
        if check_input(options.input, print_line).unusable:
            raise typer.Exit(1)
        return
    if not options.output:
        raise SkimError("--output is missing: give a file for the answers")
    if options.endpoint and options.config:
        raise SkimError("give either --endpoint or --config: a running endpoint, or a deployment to start")
    if options.config is None:
        endpoint = options.endpoint or os.environ.get("OPENAI_BASE_URL") or ENDPOINT
        options = replace(options, endpoint=endpoint)
    run_batch(replace(options, address=options.address or None), print_line)
