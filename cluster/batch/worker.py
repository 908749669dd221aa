"""Answers parts in Ray Data's actors by OpenAI's own client, which retries, and writes them to the journal."""

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import SecretStr

from cluster.batch.journal import Journal
from cluster.batch.rows import (
    BatchAnswer,
    BatchRequest,
    Part,
    Response,
    RowFault,
    UnusableRowError,
    parse,
    read_part,
    usage_of,
)
from skim_common.errors import EngineUnavailableError, SkimError
from skim_common.proxies import client_options

CONNECT_TIMEOUT_S = 10.0
UNAVAILABLE = frozenset({429, 502, 503, 504})
"""Status codes of an endpoint, or of a gateway before it, that may be temporary."""
EFFECTIVE = "x-skim-"
"""How the names of headers begin that tell how Skim ran a request. They are kept with the answer."""
REQUESTS_PER_WORKER = 64
"""Concurrent requests of one actor. More are spread over more actors: JSON of long prompts costs CPU."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and how often they are retried. timeout_s: of one try."""

    url: str
    api_key: SecretStr
    max_retries: int = 8
    timeout_s: float = 3600.0


class BatchClient:
    """Sends requests to one endpoint, at most `concurrency` at a time, in one event loop."""

    def __init__(self, endpoint: Endpoint, concurrency: int) -> None:
        self._url, self._http = endpoint.url.rstrip("/"), _client(endpoint)
        self._turn = asyncio.Semaphore(concurrency)

    async def ask(self, request: BatchRequest) -> Response | RowFault:
        """The endpoint's answer (also an HTTP error), or the reason why there is none.

        Raises EngineUnavailableError if the endpoint no longer answers any request: then the row is not at fault.
        """
        async with self._turn:
            try:
                outcome: Response | RowFault = _as_response(
                    await self._http.post(request.url, body=request.body, cast_to=httpx2.Response)
                )
            except APIStatusError as error:
                outcome = _as_response(error.response)
            except APITimeoutError:
                outcome = RowFault("timeout", "the endpoint took longer than --timeout at every try")
            except APIConnectionError as error:
                reason = str(error.__cause__ or error)
                outcome = RowFault("connection_error", f"the connection was lost at every try: {reason}")
            may_be_down = isinstance(outcome, RowFault) or outcome.status_code in UNAVAILABLE
            if may_be_down and await _status(self._http, max_retries=1) in (None, *UNAVAILABLE):
                raise EngineUnavailableError(f"the endpoint {self._url} stopped answering")
            return outcome


def _as_response(response: httpx2.Response) -> Response:
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = response.content.decode(errors="replace")
    request_id = response.headers.get("x-request-id") or (body.get("id") if isinstance(body, dict) else None)
    effective = {name: value for name, value in response.headers.items() if name.startswith(EFFECTIVE)}
    return Response(response.status_code, str(request_id or ""), body, effective)


async def check_endpoint(endpoint: Endpoint) -> None:
    """Raise SkimError unless the endpoint answers and accepts the key. Called before any row is sent."""
    async with _client(endpoint) as http:
        code = await _status(http, max_retries=3)
    if code is None:
        raise SkimError(
            f"nothing answers at {endpoint.url}: start `skim serve`, give a running --endpoint, or give a --config, "
            "which starts pools for the batch"
        )
    if code != httpx2.codes.OK:
        hint = "set OPENAI_API_KEY to a key that it accepts" if code in (401, 403) else "is it an OpenAI endpoint?"
        raise SkimError(f"{endpoint.url} answered {code} for its /v1/models: {hint}")


async def _status(http: AsyncOpenAI, *, max_retries: int) -> int | None:
    """The status code of /v1/models; None if nothing answers."""
    try:
        options: Any = {"max_retries": max_retries, "timeout": 60.0}
        await http.get("/v1/models", cast_to=httpx2.Response, options=options)
    except APIStatusError as error:
        return error.response.status_code
    except APIConnectionError:
        return None
    return httpx2.codes.OK


def _client(endpoint: Endpoint) -> AsyncOpenAI:
    logging.getLogger("openai").setLevel(logging.ERROR)
    return AsyncOpenAI(
        base_url=endpoint.url.rstrip("/").removesuffix("/v1"),
        api_key=endpoint.api_key.get_secret_value(),
        max_retries=endpoint.max_retries,
        timeout=httpx2.Timeout(endpoint.timeout_s, connect=CONNECT_TIMEOUT_S),
        http_client=DefaultAsyncHttpxClient(**client_options(endpoint.url)),
    )


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a worker, or of all together. concurrency: requests that are sent at a time."""

    input: str
    output: str
    endpoint: Endpoint
    concurrency: int
    batch_id: str


class PartWorker:
    """Ray Data's callable: takes parts, returns reports. Several parts run at once, so none waits for a slow row."""

    def __init__(self, work: WorkerSettings) -> None:
        self._work = work
        self._client = BatchClient(work.endpoint, work.concurrency)
        self._journal = Journal(work.output)

    async def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """batch: one part as JSON, in the column `part`. Returns columns with its counts, and the reason why the whole
        job must stop, if there is one."""
        part = msgspec.json.decode(str(batch["part"][0]), type=Part)
        report: dict[str, Any] = {"rows": 0, "failed": 0, "read": 0, "written": 0, "failure": ""}
        try:
            rows = await asyncio.to_thread(read_part, self._work.input, part)
            answers = await asyncio.gather(*(self._answer(*row) for row in rows))
            await asyncio.to_thread(self._journal.commit, part, answers)
            report |= {"rows": len(answers), "failed": sum(answer.failed for answer in answers)}
            for read, written in (usage_of(answer.response.body) for answer in answers if answer.response):
                report["read"] += read
                report["written"] += written
        except SkimError as error:
            report["failure"] = str(error)
        return {name: [value] for name, value in report.items()}

    async def _answer(self, number: int, line: bytes) -> BatchAnswer:
        try:
            request = parse(line)
            custom_id: str | None = request.custom_id
            outcome = await self._client.ask(request)
        except UnusableRowError as error:
            custom_id, outcome = error.custom_id, RowFault(error.fault.code, f"line {number}: {error}")
        fault = outcome if isinstance(outcome, RowFault) else None
        response = outcome if isinstance(outcome, Response) else None
        return BatchAnswer(f"batch_req_{self._work.batch_id}_{number}", custom_id, response, fault)


def answer_parts(work: WorkerSettings, parts: Sequence[Part], node_id: str | None) -> Iterator[dict[str, Any]]:
    """Let Ray Data answer `parts`, and yield the row of each (`PartWorker`) as it comes.

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
    one = replace(work, concurrency=math.ceil(work.concurrency / workers))
    at_once = max(2, math.ceil(2 * one.concurrency / max(part.rows for part in parts)))
    items = [{"part": msgspec.json.encode(part).decode()} for part in parts]
    reports = ray.data.from_items(items, override_num_blocks=len(parts)).map_batches(
        PartWorker,
        batch_size=None,
        fn_constructor_args=(one,),
        compute=ActorPoolStrategy(
            size=min(workers, len(parts)),
            max_tasks_in_flight_per_actor=at_once,
            max_concurrent_calls_per_actor=at_once,
        ),
        num_cpus=0,
        label_selector={"ray.io/node-id": node_id} if node_id else None,
    )
    yield from reports.iter_rows()
