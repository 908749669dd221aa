"""The ASGI middlewares around vLLM's HTTP app: the outer one asks for an API key, the inner one reads the options.

The options are read before the app parses the body. `router.http.response` sends what the app answers.
"""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from router.admission.api_keys import SCOPE_KEY, ApiKeys, Caller, KeyUses, LimitReachedError, caller_of
from router.admission.intake_lock import IntakeLock
from router.admission.ticket import AdmissionRequest
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CURRENT, CallState
from router.dispatch.telemetry import traced_request
from router.http.body import BodyBudget, check_headers, read_body, read_fields
from router.http.response import DeferredResponse
from router.options.errors import HttpError, RefusedError
from router.options.headers import read_deadline, read_later_requests
from router.options.request import DECODE, PREFILL, read_decode
from router.prompt.context_edits import FIELD, read_edits
from skim_common.errors import InvalidRequestError

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics"})
_UNKNOWN_KEY = HttpError(
    401,
    "AuthenticationError",
    "the API key is missing or unknown; send a valid one in the header Authorization: Bearer",
)
_ADMITTED = ("/completions", "/responses", "/messages", "/select")
"""Ends of the paths whose prompts ask for admission."""


class KeyMiddleware:
    """Refuses requests without a valid key (401) or above its limits (429), before anything of them is read.

    vLLM's own leaves some paths open, among them /invocations and /tokenize. This one guards all but `OPEN_PATHS`.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self._keys, self._uses = keys, KeyUses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        # A browser sends OPTIONS without credentials, before the request itself.
        if scope["type"] == "lifespan" or scope.get("method") == "OPTIONS" or path in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        key = self._keys.find(_sent_key(Headers(scope=scope)))
        if scope["type"] != "http":
            await (self.app if key else WebSocketClose(1008))(scope, receive, send)
            return
        if key is None:
            await _UNKNOWN_KEY.response(scope["path"])(scope, receive, send)
            return
        use = self._uses.of(key)
        try:
            started = use.start()
        except LimitReachedError as error:
            await HttpError.of(error).response(scope["path"])(scope, receive, send)
            return
        try:
            scope[SCOPE_KEY] = Caller(key, use)
            await self.app(scope, receive, send)
        finally:
            use.end(started)


def _sent_key(headers: Headers) -> str:
    """The key in OpenAI's header, or in Anthropic's; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class SkimMiddleware:
    """Reads what a request asks, and refuses what admission would refuse in any case. model: the name that spans have.
    intake: each request passes it."""

    def __init__(self, app: ASGIApp, dispatcher: Dispatcher, model: str = "", intake: IntakeLock | None = None) -> None:
        self.app = app
        self._dispatcher, self._model = dispatcher, model
        self._budget, self._intake = BodyBudget(), intake or IntakeLock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        with traced_request(self._model, scope) as traced:
            receive, send = traced.watched(receive, send)
            try:
                request, body = await self._read(scope, receive)
            except (InvalidRequestError, RefusedError) as error:
                await HttpError.of(error).response(scope["path"])(scope, receive, send)
                return
            release_intake = await self._intake.enter()
            try:
                traced.call = call = CallState(request, traced.span, release_intake)
                await self._answer(call, body, scope, receive, send)
            finally:
                release_intake()  # whatever was raised: a request that waits for this one would wait for the alarm

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Request, bytes]:
        """What the call asks, and the body for the app. Raises what refuses the request before it is taken in."""
        arrived, headers, path = asyncio.get_running_loop().time(), Headers(scope=scope), scope["path"]
        check_headers(headers)
        body = await read_body(headers, receive, self._dispatcher.settings.max_body_bytes, self._budget)
        deadline = read_deadline(headers, self._dispatcher.settings.deadline_s, arrived)
        caller, came = caller_of(scope), time.perf_counter()
        # vLLM's field and header may give it a place before others.
        has_priority = "x-vllm-priority" in headers or b"priority" in body
        if path.endswith(_ADMITTED) and not has_priority:
            key = caller.key.name if caller else ""
            self._dispatcher.admission.refuse_early(AdmissionRequest(key, deadline=deadline))
        read = await read_fields(body, path)
        fields, defaults = read.fields, self._dispatcher.defaults
        decode = read_decode(self._dispatcher.decode_defaults, headers, fields.get(DECODE.name))
        request = Request(
            options=PREFILL.resolve(defaults, headers.get(PREFILL.header), fields.get(PREFILL.name)),
            decode=decode.decode,
            decode_is_explicit=bool(decode.model_fields_set),
            echo=bool(fields.get("echo")),
            beam_search=bool(fields.get("use_beam_search")),
            keep_fields=read.keep_fields,
            edits=read_edits(fields[FIELD], len(read.body)) if FIELD in fields else (),
            render_only=path.endswith("/render"),
            later_requests=read_later_requests(headers),
            has_tools=bool(fields.get("tools")),
            caller=caller,
            deadline=deadline,
            arrived=came,
        )
        return request, read.body

    async def _answer(self, call: CallState, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer the call."""
        token, report = CURRENT.set(call), self._dispatcher.log.add_report
        response = DeferredResponse(call, scope, receive, send, self._dispatcher.settings.keep_alive_s, report)
        try:
            await self.app(scope, _replay(body, receive), response)
        except Exception:
            # vLLM's stream of /v1/responses does not catch errors of `generate`; its other streams do.
            if call.error is None:
                raise
            await response.fail(call.error)
        finally:
            CURRENT.reset(token)
            await response.close()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body once and then the connection's further messages (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
