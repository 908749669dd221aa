"""Defers a response until its headers are true, and keeps a stream alive that must wait longer.

vLLM starts a stream before it asks the engine, but the headers' values are known with the first token only, and an
error after the start has no HTTP status of its own. So the start, and what follows it, is held until the first token.
A later error ends the stream, in the same form on every endpoint.

A proxy may cut a silent connection. So a stream that is silent for `keep_alive_s` gets a comment, once the request is
admitted: until then a refusal needs its status. A comment before the first token opens the stream with the headers that
are known by then; the other values are in `GET /v1/requests/{id}`. vLLM's own keep-alive knows neither /v1/responses
nor /v1/messages (0.29), nor when a request is admitted.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from router.dispatch.state import CallState
from router.http.usage import COUNTED, USAGE, losses_of, with_losses, with_original_tokens
from router.options.errors import HttpError

MAX_VALUE_CHARS = 384
"""Of one header. Proxies refuse a response with more headers than their buffer holds: nginx's has 4 KiB."""
_CUT = ", ..."
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients ignore lines that begin with a colon."""

Report = Callable[[str, Mapping[str, str], str], None]
"""Gets the request's id, the values of its headers and the name of its API key."""


class DeferredResponse:
    """An ASGI `send` that holds all messages until the first token arrives, the request fails, or the body ends.

    keep_alive_s: the longest silence of a stream; 0: it has no limit. The time before the admission counts. report:
    called once, when the values of the headers are final.
    """

    def __init__(
        self, call: CallState, scope: Scope, receive: Receive, send: Send, keep_alive_s: float, report: Report
    ) -> None:
        self._call, self._scope, self._receive, self._send = call, scope, receive, send
        self._keep_alive_s, self._report = keep_alive_s, report
        self._held: list[Message] = []
        self._open = self._ended = self._reported = False
        self._losses: dict[str, Any] | None = None
        self._between_events = True
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._keep_alive: asyncio.Task[None] | None = None

    async def __call__(self, message: Message) -> None:
        async with self._sending:
            if self._call.error is not None:
                await self._fail(self._call.error)
                return
            self._ended = message["type"] == "http.response.body" and not message.get("more_body")
            message = self._with_losses(message)
            if self._open:
                await self._pass(message)
                return
            self._held.append(message)
            if self._keep_alive_s and _starts_stream(message):
                self._keep_alive = asyncio.create_task(self._fill_silence())
            if self._ended or (self._call.headers_are_true and _starts_stream(self._held[0])):
                await self._release()

    async def fail(self, error: HttpError) -> None:
        """Send `error` as the response, or as the last event of a stream that has begun."""
        async with self._sending:
            await self._fail(error)

    async def close(self) -> None:
        """End the keep-alive. If it failed, because the client is gone, all other sends fail, too."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            await asyncio.wait([self._keep_alive])

    async def _fail(self, error: HttpError) -> None:
        if self._ended:
            return
        self._ended, path = True, self._scope["path"]
        if self._open:
            self._values()
            event = write_error_event(error.body(path))
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            await error.response(path)(self._scope, self._receive, self._send)

    async def _release(self) -> None:
        self._open = True
        values, headers = self._values(), MutableHeaders(scope=self._held[0])
        headers.update({name: bounded(value) for name, value in values.items()})
        if values and _starts_stream(self._held[0]):
            headers["x-accel-buffering"] = "no"  # nginx would collect the events of a stream
        if "content-length" in headers:
            headers["content-length"] = str(sum(len(message.get("body", b"")) for message in self._held))
        for message in self._held:
            await self._pass(message)
        self._held.clear()

    async def _pass(self, message: Message) -> None:
        if not self._reported:
            self._values()
        self._last_sent = self._loop.time()
        if body := message.get("body", b""):
            self._between_events = body.endswith(b"\n\n")
        await self._send(message)

    def _with_losses(self, message: Message) -> Message:
        body, path, call = message.get("body", b""), self._scope["path"], self._call
        if body and call.edits and path.endswith(COUNTED):
            return {**message, "body": with_original_tokens(body, call.edits)}
        if USAGE not in body or not call.headers_are_true:
            return message
        if self._losses is None:
            self._losses = losses_of(call)
        return {**message, "body": with_losses(body, path, self._losses, call.edits)}

    def _values(self) -> dict[str, str]:
        """The values of the headers that are known by now. They are reported as soon as they are final."""
        values = dict(self._call.headers())
        if values and not self._reported and (self._call.headers_are_true or self._ended):
            self._reported = True
            self._report(self._call.request_id, values, self._call.request.key)
        return values

    async def _fill_silence(self) -> None:
        """Send a comment whenever nothing was sent for `keep_alive_s`, once the request is admitted."""
        while True:
            await self._call.admission.wait()
            if (left := self._last_sent + self._keep_alive_s - self._loop.time()) > 0:
                await asyncio.sleep(left)
                continue
            async with self._sending:
                # A comment inside an event would be a part of its data.
                if self._between_events and not self._ended and self._call.error is None:
                    if not self._open:
                        await self._release()
                    await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            self._last_sent = self._loop.time()


def write_error_event(error: Mapping[str, Any]) -> bytes:
    """The last event of a stream that fails. error: as `HttpError.body`.

    OpenAI's clients look for an `error` in the data, Anthropic's for an event of that name.
    """
    return f"event: error\ndata: {json.dumps({'type': 'error', **error})}\n\n".encode()


def _starts_stream(message: Message) -> bool:
    if message["type"] != "http.response.start":
        return False
    return Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")


def bounded(value: str) -> str:
    """A header value of at most MAX_VALUE_CHARS: of a longer one, the first prompts' values and an ellipsis."""
    if len(value) <= MAX_VALUE_CHARS:
        return value
    whole = value.rfind(", ", 0, MAX_VALUE_CHARS - len(_CUT) + 1)
    return value[: max(whole, 0)] + _CUT
