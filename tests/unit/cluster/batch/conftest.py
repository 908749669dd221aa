"""Inputs, and a fake endpoint: a function from request to response behind OpenAI's real client."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

import cluster.batch.worker

Answer = Callable[[httpx2.Request], httpx2.Response]

_count = itertools.count()


def row(custom_id: str, **body: Any) -> dict[str, Any]:
    """A row of the input with the given body."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_rows(path: Path, rows: int) -> str:
    """Write an input with rows r0, r1, ... whose `seed` is their number."""
    path.write_text("".join(json.dumps(row(f"r{i}", seed=i)) + "\n" for i in range(rows)))
    return str(path)


@pytest.fixture
def memory_url() -> str:
    """URL of an output in fsspec's memory file system, which all tests of this process share."""
    return f"memory://batch-{next(_count)}/out.jsonl"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[float]]:
    """`waits = serve(answer)`: every request goes to `answer`. Waits between tries are recorded, without waiting."""

    def serve(answer: Answer) -> list[float]:
        waits: list[float] = []

        def client(endpoint: cluster.batch.worker.Endpoint) -> AsyncOpenAI:
            transport = httpx2.MockTransport(answer)
            return original(endpoint).with_options(http_client=httpx2.AsyncClient(transport=transport))

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        original = cluster.batch.worker._client
        monkeypatch.setattr("cluster.batch.worker._client", client)
        monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
        return waits

    return serve
