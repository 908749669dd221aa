"""Answers parts in Ray Data's actors, a few parts at a time, and writes them to the journal."""

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from cluster.batch.client import BatchClient, Endpoint
from cluster.batch.journal import Journal
from cluster.batch.plan import InputRow, Part, read_part
from cluster.batch.rows import BatchAnswer, RowFault, UnusableRowError, parse, usage_of
from skim_common.errors import SkimError

REQUESTS_PER_WORKER = 64
"""Concurrent requests of one actor. More are spread over more actors: JSON of long prompts costs CPU."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of all workers. concurrency: requests that all workers in total send at a time."""

    input: str
    output: str
    endpoint: Endpoint
    concurrency: int
    batch_id: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """The result of one part. failure: the reason why the whole job must stop; the numbers are then 0."""

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    failure: str = ""


class PartWorker:
    """Ray Data's callable: takes parts, returns reports. Several parts run at once, so none waits for a slow row."""

    def __init__(self, work: WorkerSettings, concurrency: int) -> None:
        self._work = work
        self._client = BatchClient(work.endpoint, concurrency)
        self._journal = Journal(work.output)

    async def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """batch: one part as JSON, in the column `part`. Returns its report, as columns."""
        part = msgspec.json.decode(str(batch["part"][0]), type=Part)
        try:
            report = await self.answer(part)
        except SkimError as error:
            report = PartReport(failure=str(error))
        return {name: [value] for name, value in asdict(report).items()}

    async def answer(self, part: Part) -> PartReport:
        """Send all rows of `part` and commit the answers. Raises SkimError if the job cannot continue."""
        lines = await asyncio.to_thread(read_part, self._work.input, part)
        answers = await asyncio.gather(*map(self._answer, part.sent, lines))
        await asyncio.to_thread(self._journal.commit, part, answers)
        usages = [usage_of(answer.response.body) for answer in answers if answer.response]
        prompt_tokens, answer_tokens = (sum(column) for column in zip(*usages, strict=True)) if usages else (0, 0)
        return PartReport(len(answers), sum(answer.failed for answer in answers), prompt_tokens, answer_tokens)

    async def _answer(self, row: InputRow, line: bytes) -> BatchAnswer:
        name = f"batch_req_{self._work.batch_id}_{row.line}"
        try:
            request = parse(line)
        except UnusableRowError as error:
            fault = msgspec.structs.replace(error.fault, message=f"line {row.line}: {error.fault.message}")
            return BatchAnswer(name, error.custom_id, None, fault)
        outcome = await self._client.ask(request, row.later)
        if isinstance(outcome, RowFault):
            return BatchAnswer(name, request.custom_id, None, outcome)
        return BatchAnswer(name, request.custom_id, outcome, None)


def answer_parts(work: WorkerSettings, parts: Sequence[Part], node_id: str | None) -> Iterator[PartReport]:
    """Let Ray Data answer `parts`, and yield their reports as they come.

    node_id: the node for all workers, if the files or the endpoint are local to that node. Back-pressure: an actor
    reads a part when it has room for it, so at most twice the concurrent requests are in memory.
    """
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext

    # Importing ray.data sets its log levels. Its lines of each run go to its log file; the terminal shows our own.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    workers = math.ceil(work.concurrency / REQUESTS_PER_WORKER)
    each = math.ceil(work.concurrency / workers)
    at_once = math.ceil(2 * each / max(part.rows for part in parts))
    items = [{"part": msgspec.json.encode(part).decode()} for part in parts]
    reports = ray.data.from_items(items, override_num_blocks=len(parts)).map_batches(
        PartWorker,
        batch_size=None,
        fn_constructor_kwargs={"work": work, "concurrency": each},
        compute=ActorPoolStrategy(
            size=min(workers, len(parts)),
            max_tasks_in_flight_per_actor=max(at_once, 2),
            max_concurrent_calls_per_actor=max(at_once, 2),
        ),
        num_cpus=0,
        label_selector={"ray.io/node-id": node_id} if node_id else None,
    )
    for row in reports.iter_rows():
        yield PartReport(**row)
