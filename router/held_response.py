"""Holds a response back until its headers can tell what happened, and keeps a stream alive that must wait longer.

The headers describe the selection, which is made when the first token arrives. An earlier error becomes a plain HTTP
error, for streams too. A later error ends the stream, in the same form on every endpoint.

A stream without a first token after `keep_alive_s` is opened with the headers that are known, if the request is
admitted. The other values follow in a comment before the last event.
"""

import asyncio
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from router.context import HttpError, RequestContext
from router.keep_alive import KeepAlive
from router.server_sent_events import KEEP_ALIVE, write_error_event, write_late_values

_LAST_EVENTS = (
    b"data: [DONE]",
    b"event: message_stop\n",
    *(b"event: response.%s\n" % end for end in (b"completed", b"incomplete", b"failed")),
)
"""How the last event of a stream begins, by endpoint. vLLM sends each event as one message."""

MAX_VALUE_CHARS = 384
"""Of one header. Proxies refuse a response with more headers than their buffer holds: nginx's has 4 KiB."""
_CUT = ", ..."

Report = Callable[[str, Mapping[str, str], str], None]
"""Gets the request's id, the values of its headers and the name of its API key."""


class HeldResponse:
    """An ASGI `send` that holds all messages until the first token arrives, the request fails, or the body ends.

    keep_alive_s: the longest silence of a stream; 0: it has no limit. report: called when the values are final.
    """

    def __init__(
        self, context: RequestContext, scope: Scope, receive: Receive, send: Send, keep_alive_s: float, report: Report
    ) -> None:
        self._context, self._scope, self._receive, self._send = context, scope, receive, send
        self._report = report
        self._held: list[Message] = []
        self._values: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._open = self._ended = self._final = self._streams = False
        self._between_events = True
        self._sending = asyncio.Lock()
        self._keep_alive = KeepAlive(keep_alive_s, context.admission, self._comment)

    async def __call__(self, message: Message) -> None:
        async with self._sending:
            if self._context.error is not None:
                await self._fail(self._context.error)
                return
            self._ended = message["type"] == "http.response.body" and not message.get("more_body")
            if self._open:
                await self._pass(message)
                return
            self._held.append(message)
            if message["type"] == "http.response.start":
                self._streams = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
                if self._streams:
                    self._keep_alive.start()
            if self._ended or self._context.headers_are_true:
                await self._release()

    async def fail(self, error: HttpError) -> None:
        """Send `error` as the response, or as the last event of a stream that has begun."""
        async with self._sending:
            await self._fail(error)

    async def close(self) -> None:
        """End the keep-alive."""
        await self._keep_alive.stop()

    async def _fail(self, error: HttpError) -> None:
        if self._ended:
            return
        self._ended = True
        if self._open:
            event = write_error_event(error.body())
            await self._send({"type": "http.response.body", "body": self._late() + event, "more_body": False})
        else:
            await respond(error, self._scope, self._receive, self._send)

    async def _release(self) -> None:
        self._open = True
        self._learn()
        self._told = self._values
        headers = MutableHeaders(scope=self._held[0])
        headers.update({name: bounded(value) for name, value in self._values.items()})
        if self._streams and self._values:
            headers["x-accel-buffering"] = "no"  # nginx would collect the events of a stream
        for message in self._held:
            await self._pass(message)
        self._held.clear()

    async def _pass(self, message: Message) -> None:
        self._keep_alive.sent()
        if body := message.get("body", b""):
            self._between_events = body.endswith(b"\n\n")
        if self._ended or body.startswith(_LAST_EVENTS):
            message = {**message, "body": self._late() + body}
        else:
            self._learn()
        await self._send(message)

    async def _comment(self) -> None:
        """Send a comment; open the stream before it."""
        async with self._sending:
            # A comment inside an event would be a part of its data.
            if self._ended or self._context.error is not None or not self._between_events:
                return
            if not self._open:
                await self._release()
            await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    def _learn(self) -> None:
        """Take over the values that are known by now. They are final when the first token has arrived."""
        if not self._final:
            self._values, self._final = dict(self._context.headers()), self._context.headers_are_true or self._ended
            if self._final and self._values:
                self._report(self._context.request_id, self._values, self._context.key)

    def _late(self) -> bytes:
        """A comment with the values that the headers do not have; empty if there are none or it was sent."""
        self._learn()
        if not self._streams:
            return b""
        late = {name: value for name, value in self._values.items() if name not in self._told}
        self._told = self._values
        return write_late_values(late) if late else b""


def bounded(value: str) -> str:
    """A header value of at most MAX_VALUE_CHARS: of a longer one, the first prompts' values and an ellipsis."""
    if len(value) <= MAX_VALUE_CHARS:
        return value
    whole = value.rfind(", ", 0, MAX_VALUE_CHARS - len(_CUT) + 1)
    return value[: max(whole, 0)] + _CUT


async def respond(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send `error` as the whole response."""
    await JSONResponse(error.body(), error.status, error.headers)(scope, receive, send)
