"""The load of the soak run: requests at random times, each answer compared with the undisturbed deployment's."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from demo_models.documents import make_document

HUNG_S = 120
"""A request without an answer after this time hangs. It is longer than every time limit of the deployment."""

LEAVING = 0.1
"""The share of clients that hang up before their answer is complete."""


@dataclass(frozen=True)
class Request:
    """A request whose answer is known. known: the texts of the answers to its kept and its whole prompt."""

    path: str
    body: dict[str, Any]
    known: frozenset[str] = frozenset()


@dataclass
class Seen:
    """What the clients saw in one round. kinds: answered, refused, broken, lost, left (by the client), hung, wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, seconds: float, example: str = "") -> None:
        self.kinds[kind] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if example and len(self.examples) < 5:
            self.examples.append(f"{kind}: {example[:300]}")


def requests(seed: int) -> list[Request]:
    """One request for each endpoint, streamed and whole, over documents of several lengths."""
    found = []
    for at, tokens in enumerate((300, 1200, 2000, 3000)):
        messages = make_document(tokens, seed + at).messages
        [text] = [message["content"] for message in messages if message["role"] == "user"]
        shared = {"model": "skim-demo", "temperature": 0.0}
        for stream in (False, True):
            more = {**shared, "stream": stream}
            chat = {**more, "messages": messages, "max_tokens": 40, "ignore_eos": True}
            found.append(Request("/v1/chat/completions", chat))
            found.append(Request("/v1/completions", {**more, "prompt": text, "max_tokens": 24, "ignore_eos": True}))
            found.append(Request("/v1/messages", {**more, "messages": messages, "max_tokens": 16}))
            found.append(Request("/v1/responses", {**more, "input": text, "max_output_tokens": 16, "store": False}))
    return found


def text_of(path: str, answer: Any) -> str:
    """The text of an answer, or of one event of a stream."""
    if path == "/v1/messages":
        parts = answer.get("content") or [answer.get("delta") or {}]
        return "".join(part.get("text") or "" for part in parts)
    if path == "/v1/responses":
        if isinstance(answer.get("delta"), str):
            return str(answer["delta"])
        return "".join(part["text"] for item in answer.get("output", ()) for part in item.get("content") or ())
    return "".join(
        choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        for choice in answer.get("choices", ())
    )


async def ask(client: httpx.AsyncClient, request: Request) -> tuple[int, str, str]:
    """Status, text and error of one request. The error of a stream is its last event."""
    if not request.body["stream"]:
        response = await client.post(request.path, json=request.body)
        whole = response.json() if response.status_code == 200 else {}
        return response.status_code, text_of(request.path, whole), "" if whole else response.text
    text, error = "", ""
    async with client.stream("POST", request.path, json=request.body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event.get("error"):
                error = line
            elif event.get("type") not in ("response.completed", "response.created", "response.in_progress"):
                text += text_of(request.path, event)
        return response.status_code, text, error


class Load:
    """Requests that arrive as a Poisson process, whether or not earlier ones are answered. rate: per second."""

    def __init__(self, url: str, known: Sequence[Request], rate: float, rng: random.Random) -> None:
        self._url, self._known, self._rate, self._rng = url, known, rate, rng
        self._ask: Callable[[Request], None]
        self._loop: asyncio.AbstractEventLoop

    async def during(self, act: Callable[[], None]) -> Seen:
        """What clients see while `act` runs in a thread."""
        seen, self._loop = Seen(), asyncio.get_running_loop()
        async with _client(self._url) as client, asyncio.TaskGroup() as asked:

            def ask(request: Request) -> None:
                leaves_after_s = self._rng.random() if self._rng.random() < LEAVING else None
                asked.create_task(_one(client, request, leaves_after_s, seen))

            self._ask = ask
            arriving = asked.create_task(self._arrive())
            try:
                await asyncio.to_thread(act)
            finally:
                arriving.cancel()
        return seen

    async def ask_one(self) -> None:
        """One request and its answer, which nobody looks at."""
        async with _client(self._url) as client:
            await judge(client, self._rng.choice(self._known))

    def burst(self, requests: Iterable[Request]) -> None:
        """These requests at once, from the thread of `act`."""
        for request in requests:
            self._loop.call_soon_threadsafe(self._ask, request)

    async def _arrive(self) -> None:
        due = time.monotonic()
        while True:
            due += self._rng.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._ask(self._rng.choice(self._known))


async def sustainable(url: str, known: Sequence[Request], clients: int, seconds: float, rng: random.Random) -> float:
    """Answers per second when `clients` ask without a pause. Raises AssertionError unless all answers are right."""
    seen = Seen()
    async with _client(url) as client:
        ends = time.monotonic() + seconds

        async def ask_on() -> None:
            while time.monotonic() < ends:
                await _one(client, rng.choice(known), None, seen)

        began = time.monotonic()
        await asyncio.gather(*(ask_on() for _ in range(clients)))
        took = time.monotonic() - began
    assert set(seen.kinds) == {"answered"}, f"{seen.kinds} undisturbed: {seen.examples}"
    return seen.kinds["answered"] / took


def _client(url: str) -> httpx.AsyncClient:
    """One whose requests never wait for a connection."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits)


async def _one(client: httpx.AsyncClient, request: Request, leaves_after_s: float | None, seen: Seen) -> None:
    began = time.monotonic()
    if leaves_after_s is not None:
        await _leave(client, request, leaves_after_s)
        seen.add("left", 0.0)
        return
    kind, example = await judge(client, request)
    seen.add(kind, time.monotonic() - began, example)


async def _leave(client: httpx.AsyncClient, request: Request, after_s: float) -> None:
    """Ask, and hang up before the answer is complete."""
    asked = asyncio.create_task(ask(client, request))
    await asyncio.wait({asked}, timeout=after_s)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def judge(client: httpx.AsyncClient, request: Request) -> tuple[str, str]:
    """The kind of the answer, and what it was if it is none of the known ones."""
    where = f"{request.path}{' streamed' if request.body['stream'] else ''}"
    try:
        status, text, error = await ask(client, request)
    except httpx.TimeoutException as failure:
        return "hung", f"{where}: {failure!r}"
    except httpx.HTTPError as failure:
        return "lost", f"{where}: {failure!r}"
    if status in (429, 503):
        return "refused", f"{where}: {status} {error}"
    if status != 200 or error:
        return "broken", f"{where}: {status} {error}"
    return ("answered", "") if text in request.known else ("wrong", f"{where}: {text!r}")


async def learn(url: str, asked: list[Request], headers: Mapping[str, str] | None = None) -> list[Request]:
    """The requests with the answers of the undisturbed deployment: compressed and dense."""
    known = []
    async with httpx.AsyncClient(base_url=url, timeout=HUNG_S, headers=headers) as client:
        for request in asked:
            texts = set()
            for enabled in ("always", False):
                prefill = {**request.body.get("speculative_prefill", {}), "enabled": enabled}
                body = {**request.body, "stream": False, "speculative_prefill": prefill}
                status, text, error = await ask(client, Request(request.path, body))
                assert text, f"{request.path}: {status} {error}"
                texts.add(text)
            known.append(Request(request.path, request.body, frozenset(texts)))
    return known
