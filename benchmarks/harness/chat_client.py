"""One HTTP request: the times that the client measures, and the times that the server reports (`Server-Timing`)."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from demo_models.answers import read_event, read_server_timing
from skim_common.errors import SkimError


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one answer, in milliseconds from just before the request is sent (or the engine is called).

    first_ms: when the first token came; without streaming it equals end_ms. tokens: length of the answer. parts:
    milliseconds by part, from `Server-Timing` or from the engines. request_id: the id in the response's body. text: the
    streamed answer. usage: as the server reports it (`stream_options: {"include_usage": true}`). headers: those of the
    response, with names in lower case; of a Skim with `router.keep_alive_s: 0`, else a slow stream lacks most of them.
    """

    first_ms: float
    end_ms: float
    tokens: int
    parts: Mapping[str, float] = field(default_factory=dict)
    request_id: str = ""
    text: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the target found in its prefix cache. Servers tell it if they are told to
        (`enable_prompt_tokens_details`).
        """
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def reason(self) -> str:
        """How Skim ran the request, and why, such as `dense, cached`; empty for other servers."""
        names = ("x-skim-mode", "x-skim-reason")
        return ", ".join(self.headers[name] for name in names if name in self.headers)


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Timed:
    """POST `body` to `url`, a chat or completions endpoint. Raises SkimError if the server answers with an error."""
    payload = json.dumps(body)
    began = time.perf_counter()
    async with session.post(url, data=payload, headers={"content-type": "application/json"}) as response:
        if response.status != 200:
            raise SkimError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        headers = {name.lower(): value for name, value in response.headers.items()}
        if body.get("stream"):
            return await _streamed(response, began, headers)
        answer = await response.json()
        end = 1e3 * (time.perf_counter() - began)
        usage = answer["usage"]
        return Timed(end, end, usage["completion_tokens"], request_id=answer["id"], usage=usage, **_told(headers))


def _told(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"parts": read_server_timing(headers.get("server-timing", "")), "headers": headers}


async def _streamed(response: aiohttp.ClientResponse, began: float, headers: Mapping[str, str]) -> Timed:
    first, chunks, request_id, text, usage = 0.0, 0, "", "", dict[str, Any]()
    async for line in response.content:
        event = read_event(line)
        if event is None:
            continue
        request_id, usage = event["id"], event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            if "role" not in delta:  # the first event of a chat carries the role and no token
                first = first or time.perf_counter()
                chunks += 1
                text += delta.get("content") or delta.get("text") or ""
    end = time.perf_counter()
    first_ms, end_ms = 1e3 * ((first or end) - began), 1e3 * (end - began)
    tokens = usage.get("completion_tokens") or chunks  # a chunk may have several tokens
    return Timed(first_ms, end_ms, tokens, request_id=request_id, text=text, usage=usage, **_told(headers))
