"""`skim batch`: read the input, start or find the endpoint, answer the missing parts, join all parts."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr

from cluster.commands.flags import grouped
from cluster.commands.output import progress
from skim_common.errors import SkimError

if TYPE_CHECKING:
    from cluster.batch.rows import InputPlan, Part

PrintLine = Callable[[str], None]

ENDPOINT = "http://127.0.0.1:8000"
EXTRA = ("fsspec", "httpx2", "openai", "pandas", "pyarrow")
KEY_VARIABLE = "OPENAI_API_KEY"
FOLDER_VARIABLE = "SKIM_BATCH_DIR"
PROGRESS_S = 5.0
"""A progress line is printed at most so often, and at the end."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a job. Of endpoint and config, one is None."""

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

    def print_line(line: str) -> None:
        progress.print(line, markup=False, soft_wrap=True)

    if dry_run:
        raise typer.Exit(1 if check_input(options.input, print_line)[1].unusable else 0)
    if not options.output:
        raise SkimError("--output is missing: give a file for the answers")
    if options.endpoint and options.config:
        raise SkimError("give either --endpoint or --config: a running endpoint, or a deployment to start")
    if options.config is None:
        endpoint = options.endpoint or os.environ.get("OPENAI_BASE_URL") or ENDPOINT
        options = replace(options, endpoint=endpoint)
    run_batch(replace(options, address=options.address or None), print_line)


def check_input(url: str, print_line: PrintLine) -> "tuple[str, InputPlan]":
    """Read the whole input and print a summary of it. Returns where every process finds it, too. Raises SkimError."""
    from cluster.batch.rows import read_plan
    from cluster.batch.storage import absolute, shared_path

    source = shared_path(absolute(url, Path.cwd()))
    plan = read_plan(source)
    kinds = ", ".join(f"{count} x {url}" for url, count in plan.urls.most_common())
    print_line(f"{url}: {plan.rows} rows" + (f" ({kinds})" if kinds else ""))
    for problem in plan.problems:
        print_line(f"  {problem}")
    if plan.unusable:
        print_line(f"  {plan.unusable} rows cannot be sent and will be errors in the output")
    return source, plan


def run_batch(options: BatchOptions, print_line: PrintLine) -> None:
    """Run the whole batch, or nothing if its output is finished. After a SkimError it can be run again."""
    from cluster.batch.journal import Journal
    from cluster.batch.storage import absolute

    source, plan = check_input(options.input, print_line)
    output = absolute(options.output, output_folder())
    if output.startswith("~"):
        raise SkimError(f"there is no home folder for {output}: set {FOLDER_VARIABLE}, or give an absolute --output")
    journal = Journal(output)
    if journal.open(plan):
        print_line(f"{output} is already finished")
        return
    done = journal.done()
    left = [part for part in plan.parts if part.index not in done]
    counts = Counter(rows=plan.rows - sum(part.rows for part in left))
    print_line(f"Writing {output}" + (f": {counts['rows']} rows are already done" if counts["rows"] else ""))
    # The pools stop after the output is joined: stopping takes seconds.
    with ExitStack() as stack:
        try:
            if left:
                batch_id = plan.fingerprint[:12]
                url = stack.enter_context(_endpoint(options, batch_id, print_line))
                options = replace(options, input=source, output=output, endpoint=url)
                _answer(options, batch_id, left, plan.rows, counts, print_line)
        except (SystemExit, KeyboardInterrupt):
            print_line(f"Stopped with {counts['rows']} of {plan.rows} rows done: run the same command to continue")
            raise
        except SkimError as error:
            raise SkimError(
                f"{error}; {counts['rows']} of {plan.rows} rows are done: run the same command to continue"
            ) from error
        if (failed := journal.finish(plan.parts)) is None:
            print_line(f"{output} has been finished by another job of this batch")
        else:
            print_line(f"Wrote {output}: {plan.rows} rows, {failed} of them errors")


def output_folder() -> Path:
    """Folder for relative outputs: the working directory. In a Ray job that is a temporary copy, so a fixed folder."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return Path(os.path.expanduser(os.environ.get(FOLDER_VARIABLE, "~/skim-batch")))
    return Path.cwd()


def _answer(
    options: BatchOptions,
    batch_id: str,
    parts: "list[Part]",
    rows: int,
    counts: Counter[str],
    print_line: PrintLine,
) -> None:
    """Answer all rows of `parts` by the endpoint of `options`. rows: of the whole input. counts: gets those of each
    part; its rows are those of earlier runs, too."""
    import ray

    from cluster.batch import worker
    from cluster.batch.storage import is_local
    from skim_common.proxies import is_loopback

    assert options.endpoint is not None
    key = SecretStr(os.environ.get(KEY_VARIABLE, "none"))
    endpoint = worker.Endpoint(options.endpoint, key, options.max_retries, options.timeout_s)
    asyncio.run(worker.check_endpoint(endpoint))
    print_line(f"Sending {sum(part.rows for part in parts)} rows to {endpoint.url}")
    is_here = is_local(options.input) or is_local(options.output) or is_loopback(endpoint.url)
    node = ray.get_runtime_context().get_node_id() if is_here else None
    settings = worker.WorkerSettings(options.input, options.output, endpoint, options.concurrency, batch_id)
    before, start = counts["rows"], time.monotonic()  # errors and rates are those of this run
    printed = start
    for report in worker.answer_parts(settings, parts, node):
        if failure := report.pop("failure"):
            raise SkimError(failure)
        counts.update(report)
        now, done = time.monotonic(), counts["rows"]
        if done < rows and now - printed < PROGRESS_S:
            continue
        printed, seconds = now, max(now - start, 1e-3)
        rate = (done - before) / seconds
        print_line(
            f"{done}/{rows} rows, {counts['failed']} errors, {rate:.1f} rows/s, tokens/s: "
            f"{counts['read'] / seconds:,.0f} read, {counts['written'] / seconds:,.0f} written; about "
            f"{(rows - done) / rate:,.0f} s left"
        )


@contextmanager
def _endpoint(options: BatchOptions, batch_id: str, print_line: PrintLine) -> Iterator[str]:
    """Join Ray and give the base URL of the endpoint: a running one, or one that is started for the batch."""
    if options.config is not None:
        from cluster.config.load import load_config
        from cluster.serve.deployment import deployed

        print_line("Starting pools for the batch")
        config, name = load_config(options.config), f"skim-batch-{batch_id}"
        # The name depends on the input: a resubmitted batch replaces only what its own killed run left.
        with deployed(config, address=options.address, progress=print_line, name=name) as url:
            yield url
        return
    assert options.endpoint is not None
    import ray

    from actors.ray_hooks.ray_core import ON_LOOPBACK
    from cluster.serve.ray_cluster import join_ray, start_ray

    if options.address is None:
        start_ray(ON_LOOPBACK)
    else:
        join_ray(options.address)
    try:
        yield options.endpoint
    finally:
        ray.shutdown()
