"""The batch job: read the input, start or find the endpoint, answer the missing parts, join all parts."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr

from cluster.batch.client import Endpoint, check_endpoint
from cluster.batch.command import BatchOptions
from cluster.batch.journal import Journal, Totals
from cluster.batch.plan import InputPlan, Part, read_plan
from cluster.batch.progress import Progress
from cluster.batch.storage import absolute, is_local, shared_path
from cluster.batch.worker import WorkerSettings, answer_parts
from cluster.config.load import load_config
from skim_common.errors import SkimError
from skim_common.proxies import is_loopback

PrintLine = Callable[[str], None]

KEY_VARIABLE = "OPENAI_API_KEY"
FOLDER_VARIABLE = "SKIM_BATCH_DIR"


def check_input(url: str, print_line: PrintLine) -> InputPlan:
    """Read the whole input and print a summary of it. Raises SkimError."""
    plan = read_plan(shared_path(absolute(url, Path.cwd())))
    kinds = ", ".join(f"{count} x {url}" for url, count in plan.urls.most_common())
    print_line(f"{url}: {plan.rows} rows" + (f" ({kinds})" if kinds else ""))
    for problem in plan.problems:
        print_line(f"  {problem}")
    if plan.unusable:
        print_line(f"  {plan.unusable} rows cannot be sent and will be errors in the output")
    return plan


def run_batch(options: BatchOptions, print_line: PrintLine) -> Totals | None:
    """Run the whole batch; None if the output was already finished. After a SkimError it can be run again."""
    plan = check_input(options.input, print_line)
    source = shared_path(absolute(options.input, Path.cwd()))
    output = absolute(options.output, output_folder())
    if output.startswith("~"):
        raise SkimError(f"there is no home folder for {output}: set {FOLDER_VARIABLE}, or give an absolute --output")
    journal = Journal(output)
    if journal.open(plan):
        print_line(f"{output} is already finished")
        return None
    done = journal.done()
    left = [part for part in plan.parts if part.index not in done]
    before = plan.rows - sum(part.rows for part in left)
    print_line(f"Writing {output}" + (f": {before} rows are already done" if before else ""))
    progress = Progress(plan.rows, before, print_line)
    with ExitStack() as stack:
        try:
            if left:
                source = journal.unpack(source) if plan.packed else source
                _answer(options, plan, (source, output), left, progress, stack, print_line)
        except (SystemExit, KeyboardInterrupt):
            print_line(f"Stopped with {progress.done} of {plan.rows} rows done: run the same command to continue")
            raise
        except SkimError as error:
            raise SkimError(
                f"{error}; {progress.done} of {plan.rows} rows are done: run the same command to continue"
            ) from error
        # Before the pools stop, which takes seconds.
        if (totals := journal.finish(plan.parts)) is None:
            print_line(f"{output} has been finished by another job of this batch")
            return None
        print_line(f"Wrote {output}: {totals.rows} rows, {totals.failed} of them errors")
    return totals


def output_folder() -> Path:
    """Folder for relative outputs: the working directory. In a Ray job that is a temporary copy, so a fixed folder."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return Path(os.path.expanduser(os.environ.get(FOLDER_VARIABLE, "~/skim-batch")))
    return Path.cwd()


def _answer(
    options: BatchOptions,
    plan: InputPlan,
    files: tuple[str, str],
    parts: list[Part],
    progress: Progress,
    stack: ExitStack,
    print_line: PrintLine,
) -> None:
    """Answer all rows of `parts`. The endpoint and the connection to Ray stay until `stack` closes.

    files: of the rows, and of the output.
    """
    source, output = files
    batch_id = plan.fingerprint[:12]
    local_files = is_local(source) or is_local(output)
    key = SecretStr(os.environ.get(KEY_VARIABLE, "none"))
    url = stack.enter_context(_endpoint(options, batch_id, print_line))
    import ray

    endpoint = Endpoint(url, key, options.max_retries, options.timeout_s)
    asyncio.run(check_endpoint(endpoint))
    work = WorkerSettings(source, output, endpoint, options.concurrency, batch_id)
    here = local_files or is_loopback(url)
    node = ray.get_runtime_context().get_node_id() if here else None
    print_line(f"Sending {sum(part.rows for part in parts)} rows to {url}")
    progress.start()
    for report in answer_parts(work, parts, node):
        if report.failure:
            raise SkimError(report.failure)
        progress.add(report)


@contextmanager
def _endpoint(options: BatchOptions, batch_id: str, print_line: PrintLine) -> Iterator[str]:
    """Join Ray and give the base URL of the endpoint: a running one, or one that is started for the batch."""
    if options.config is not None:
        from cluster.serve.deployment import deployed

        print_line("Starting pools for the batch")
        # The name depends on the input: a resubmitted batch replaces only what its own killed run left.
        with deployed(
            load_config(options.config), address=options.address, progress=print_line, name=f"skim-batch-{batch_id}"
        ) as url:
            yield url
        return
    assert options.endpoint is not None
    import ray

    from actors.ray_hooks.loopback import ON_LOOPBACK
    from cluster.serve.ray_cluster import join_ray, start_ray

    if options.address is None:
        start_ray(ON_LOOPBACK)
    else:
        join_ray(options.address)
    try:
        yield options.endpoint
    finally:
        ray.shutdown()
