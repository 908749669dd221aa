"""One HTTP request: the times that the client measures, and the times that the server reports (`Server-Timing`)."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kv_transfer.errors import SkimError
from router.server_sent_events import read_event
from router.server_timing import read_server_timing


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one answer, in milliseconds from just before the request is sent (or the engine is called).

    first_ms: when the first token came; without streaming it equals end_ms. tokens: length of the answer. parts:
    milliseconds by part, from `Server-Timing` or from the engines. request_id: the id in the response's body.
    """

    first_ms: float
    end_ms: float
    tokens: int
    parts: Mapping[str, float] = field(default_factory=dict)
    request_id: str = ""


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Timed:
    """POST `body` to `url`, a chat or completions endpoint. Raises SkimError if the server answers with an error."""
    payload = json.dumps(body)
    first, chunks, request_id = 0.0, 0, ""
    began = time.perf_counter()
    async with session.post(url, data=payload, headers={"content-type": "application/json"}) as response:
        if response.status != 200:
            raise SkimError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        if body.get("stream"):
            async for line in response.content:
                event = read_event(line)
                if event is None:
                    continue
                request_id = event["id"]
                # The first event of a chat carries the role and no token.
                if event["choices"] and "role" not in event["choices"][0].get("delta", ()):
                    first = first or time.perf_counter()
                    chunks += 1
        else:
            answer = await response.json()
            request_id, chunks = answer["id"], answer["usage"]["completion_tokens"]
        end = time.perf_counter()
    timing = read_server_timing(response.headers.get("server-timing", ""))
    return Timed(1e3 * ((first or end) - began), 1e3 * (end - began), chunks, timing, request_id)
