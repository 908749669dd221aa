"""The ASGI middleware around vLLM's HTTP app: it reads the options and sends effective values and errors.

It reads the options before the app parses the body. It holds the response back until the first token arrives, because
the headers describe the selection, which is made by then. An earlier error of the engine client becomes a plain HTTP
error, for streams too. A later error ends the stream, in the same form on every endpoint.
"""

import asyncio
import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.observability.tracing import NO_TRACER, Tracer
from kv_transfer.errors import InvalidRequestError
from router.authentication import caller_of
from router.body import read_fields
from router.context import CURRENT, HttpError, RequestContext
from router.options import DECODE, PREFILL, PrefillOptions, SpeculationOptions, resolve_decode
from router.part_keeps import take_keeps
from router.refusals import RefusedError
from router.request_limits import BodyLimits, check_headers, read_body
from router.server_sent_events import write_error_event
from router.timeout_headers import read_deadline
from router.tracing import TracedRequest, traced_request


class SkimMiddleware:
    """defaults, decode_defaults: the deployment's options. tracer: starts each request's span, which names `model`.

    deadline_s: the deadline of a request without a header for it; None: no limit.
    """

    def __init__(
        self,
        app: ASGIApp,
        defaults: PrefillOptions,
        decode_defaults: SpeculationOptions,
        tracer: Tracer = NO_TRACER,
        model: str = "",
        deadline_s: float | None = None,
        limits: BodyLimits = BodyLimits(),  # noqa: B008
    ) -> None:
        self.app = app
        self.defaults, self.decode_defaults = defaults, decode_defaults
        self._tracer, self._model = tracer, model
        self._deadline_s, self._limits = deadline_s, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        with traced_request(self._tracer, self._model, scope) as request:
            await self._answer(scope, receive, request.watched(send), request)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request: TracedRequest) -> None:
        arrived = asyncio.get_running_loop().time()
        headers = Headers(scope=scope)
        try:
            check_headers(headers)
            body = await read_body(headers, receive, self._limits)
            deadline = read_deadline(headers, self._deadline_s, arrived)
            context, body = self._context(headers, body, scope["path"])
            context.deadline = deadline
            if caller := caller_of(scope):
                context.key, context.use, context.isolated = caller.key.name, caller.use, caller.key.isolate_cache
            request.context = context
        except (InvalidRequestError, RefusedError) as error:
            await _respond(HttpError.of(error), scope, receive, send)
            return
        context.span = request.span
        token = CURRENT.set(context)
        response = HeldResponse(context, scope, receive, send)
        try:
            await self.app(scope, _replay(body, receive), response)
        except Exception:
            # vLLM's stream of /v1/responses does not catch errors of `generate`; its other streams do.
            if context.error is None:
                raise
            await response.fail(context.error)
        finally:
            CURRENT.reset(token)

    def _context(self, headers: Headers, body: bytes, path: str) -> tuple[RequestContext, bytes]:
        """The request's context, and its body as vLLM's app is to read it."""
        fields = read_fields(body, path)
        keeps = take_keeps(fields, path)
        if keeps is not None:
            body = json.dumps(fields, ensure_ascii=False).encode()
        context = RequestContext(
            options=PREFILL.resolve(self.defaults, headers.get(PREFILL.header), fields.get(PREFILL.name)),
            decode=resolve_decode(self.decode_defaults, headers.get(DECODE.header), fields.get(DECODE.name)).decode,
            echo=bool(fields.get("echo")),
            beam_search=bool(fields.get("use_beam_search")),
            keeps=keeps,
        )
        return context, body


class HeldResponse:
    """An ASGI `send` that holds all messages until the first token arrives, the request fails, or the body ends."""

    def __init__(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        self._context, self._scope, self._receive, self._send = context, scope, receive, send
        self._held: list[Message] = []
        self._open = self._ended = False

    async def __call__(self, message: Message) -> None:
        if self._context.error is not None:
            await self.fail(self._context.error)
            return
        self._ended = message["type"] == "http.response.body" and not message.get("more_body")
        if self._open:
            await self._send(message)
            return
        self._held.append(message)
        if self._ended or self._context.headers_are_true:
            await self._release()

    async def fail(self, error: HttpError) -> None:
        """Send `error` as the response, or as the last event of a stream that has begun."""
        if self._ended:
            return
        self._ended = True
        if self._open:
            event = write_error_event(error.body())
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        else:
            await _respond(error, self._scope, self._receive, self._send)

    async def _release(self) -> None:
        self._open = True
        headers = MutableHeaders(scope=self._held[0])
        for name, value in self._context.headers():
            headers[name] = value
        for message in self._held:
            await self._send(message)
        self._held.clear()


async def _respond(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error.body(), error.status, error.headers)(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body once and then the connection's further messages (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
