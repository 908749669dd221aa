"""Defers a response until its headers are true, and keeps a stream alive that must wait longer.

vLLM starts a stream before it asks the engine, but the headers' values are known with the first token only, and an
error after the start has no HTTP status. So the start, and what follows it, is held until the first token.

A proxy may cut a silent connection. So a silent stream gets a comment, once the request is admitted: until then a
refusal needs its status. A comment before the first token opens the stream with the headers that are known by then; the
other values are in `GET /v1/requests/{id}`. vLLM's own keep-alive knows neither /v1/responses nor /v1/messages (0.29).

The usage of an answer gets what the target did not read, where clients of each endpoint look. All other bytes stay.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from router.dispatch.state import CallState
from router.options.errors import HttpError

MAX_VALUE_CHARS = 384
"""Of one header. Proxies refuse a response with more headers than their buffer holds: nginx's has 4 KiB."""
_CUT = ", ..."
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients ignore lines that begin with a colon."""

EDIT = "skim_selection"
"""The type of the edit in an answer of /v1/messages."""

_DETAILS = {
    "/completions": "prompt_tokens_details",
    "/completions/batch": "prompt_tokens_details",
    "/responses": "input_tokens_details",
    "/messages": "input_tokens_details",
}
"""The object inside `usage`, by the end of the path."""
COUNTED = "/messages/count_tokens"
USAGE = b'"usage"'
"""A body, or a part of a stream, without it holds no usage."""

_Object = dict[str, msgspec.Raw]
Edits = Sequence[Mapping[str, Any]]
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
        """The values of the headers that are known by now, reported as soon as they are final."""
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
    """The last event of a stream that fails. OpenAI's clients look into its data, Anthropic's at its name."""
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


def losses_of(call: CallState) -> dict[str, Any]:
    """The fields that are added to the usage of an answer whose prompts are decided. Empty if nothing was dropped and
    the request has no option of Skim: its answer is then that of a stock server."""
    if not (call.request.options.model_fields_set or any(prompt.dropped_tokens for prompt in call.prompts)):
        return {}
    kept, dropped = (sum(getattr(prompt, f"{what}_tokens") for prompt in call.prompts) for what in ("kept", "dropped"))
    losses: dict[str, Any] = {"kept_tokens": kept, "dropped_tokens": dropped}
    by_role = Counter[str]()
    for prompt in call.prompts:
        if prompt.selection is not None and prompt.dropped_tokens:
            is_dropped = np.ones(prompt.prompt_tokens, bool)
            is_dropped[prompt.selection.kept.positions] = False
            for message in prompt.messages():
                by_role[message.role] += int(is_dropped[message.start : message.end].sum())
    for role, tokens in by_role.most_common(1):
        losses["largest_dropped"] = {"role": role, "tokens": tokens}
    return losses


def with_losses(body: bytes, path: str, losses: Mapping[str, Any], edits: Edits = ()) -> bytes:
    """A whole answer, or whole events of a stream, with `losses` in each usage that is not null, and the client's own
    `edits` beside it."""
    details = next((name for end, name in _DETAILS.items() if path.endswith(end)), None)
    if details is None or not (losses or edits):
        return body
    if path.endswith("/messages") and losses.get("dropped_tokens"):
        edits = [*edits, {"type": EDIT, "cleared_input_tokens": losses["dropped_tokens"]}]
    lines = body.split(b"\n")
    for number, line in enumerate(lines):
        start = line.find(b"{")
        if USAGE in line and line[:start] in (b"", b"data: "):
            with suppress(msgspec.DecodeError):  # a part of an event, or no JSON object
                lines[number] = line[:start] + _in_answer(line[start:], details, losses, edits)
    return b"\n".join(lines)


def with_original_tokens(body: bytes, edits: Edits) -> bytes:
    """An answer of Anthropic's `count_tokens`. vLLM does not know the tokens before the edits."""
    answer = msgspec.json.decode(body)
    if management := answer.get("context_management"):  # not in an error
        management["original_input_tokens"] += sum(edit["cleared_input_tokens"] for edit in edits)
    return msgspec.json.encode(answer)


def _in_answer(text: bytes, details: str, losses: Mapping[str, Any], edits: Edits) -> bytes:
    answer = msgspec.json.decode(text, type=_Object)
    # Some events hold the whole answer: the final one of /v1/responses, the first one of /v1/messages.
    outer = next((name for name in ("response", "message") if name in answer), None)
    inner = answer if outer is None else msgspec.json.decode(answer[outer], type=_Object)
    usage = msgspec.json.decode(inner.get("usage", b"null"))
    if not isinstance(usage, dict):
        return text
    if losses:
        usage[details] = {**(usage.get(details) or {}), **losses}
    changed: dict[str, Any] = {**inner, "usage": usage}
    if edits and outer != "message":  # at a stream's start, Anthropic's client would warn of an unknown type
        changed["context_management"] = {"applied_edits": edits}
    return msgspec.json.encode(changed if outer is None else {**answer, outer: changed})
