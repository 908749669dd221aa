"""One request over HTTP, timed at the client: the first token, the end, and the server's own account of both."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from kv_transfer.errors import SkimError


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer. Milliseconds from before the request is sent (or the engine called).

    first_ms: to the first token, streaming or not at all (then it is the end). tokens: of the answer. parts: the time
    by part, as `Server-Timing` or the engines tell it. request_id: in the response's body.
    """

    first_ms: float
    end_ms: float
    tokens: int
    parts: Mapping[str, float] = field(default_factory=dict)
    request_id: str = ""


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Timed:
    """POST `body` to `url`, of chat or plain completions. Raises SkimError for what is no answer."""
    payload = json.dumps(body)
    first, chunks, request_id = 0.0, 0, ""
    began = time.perf_counter()
    async with session.post(url, data=payload, headers={"content-type": "application/json"}) as response:
        if response.status != 200:
            raise SkimError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        if body.get("stream"):
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise SkimError(f"{url} ended its answer with an error: {event['error']}")
                request_id = event["id"]
                # A chat's first event names the role; it comes with the first token, not as one.
                if event["choices"] and "role" not in event["choices"][0].get("delta", ()):
                    first = first or time.perf_counter()
                    chunks += 1
        else:
            answer = await response.json()
            request_id, chunks = answer["id"], answer["usage"]["completion_tokens"]
        end = time.perf_counter()
    timing = server_timing(response.headers.get("server-timing", ""))
    return Timed(1e3 * ((first or end) - began), 1e3 * (end - began), chunks, timing, request_id)


def server_timing(header: str) -> dict[str, float]:
    """Milliseconds by part, from a `Server-Timing` header."""
    parts = (part.partition(";dur=") for part in header.split(", ") if part)
    return {name: float(ms) for name, _, ms in parts}
