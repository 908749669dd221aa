"""The ASGI middleware that asks for an API key. It is the outermost one: nothing is read of a refused request.

vLLM's own middleware guards some path prefixes and leaves others open, among them /invocations and /tokenize. This one
guards all paths except the health checks and the metrics, which vLLM leaves open, too.
"""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from router.admission.api_keys import SCOPE_KEY, ApiKeys, Caller, KeyUses, LimitReachedError
from router.options.errors import HttpError

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics"})
_UNKNOWN = HttpError(
    401,
    "AuthenticationError",
    "the API key is missing or unknown; send a valid one in the header Authorization: Bearer",
)


class KeyMiddleware:
    """Refuses requests without a valid key (401) or above its limits (429)."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self._keys, self._uses = keys, KeyUses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A browser sends OPTIONS without credentials, before the request itself.
        if scope["type"] == "lifespan" or scope.get("method") == "OPTIONS" or _path(scope) in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        key = self._keys.find(_sent_key(Headers(scope=scope)))
        if scope["type"] != "http":
            if key is None:
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        if key is None:
            await _refuse(_UNKNOWN, scope, receive, send, {"www-authenticate": "Bearer"})
            return
        use = self._uses.of(key)
        try:
            started = use.start()
        except LimitReachedError as error:
            await _refuse(HttpError.of(error), scope, receive, send)
            return
        try:
            scope[SCOPE_KEY] = Caller(key, use)
            await self.app(scope, receive, send)
        finally:
            use.end(started)


def _path(scope: Scope) -> str:
    return scope["path"].removeprefix(scope.get("root_path", ""))


def _sent_key(headers: Headers) -> str:
    """The key of a request: of OpenAI's header, or of Anthropic's; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


async def _refuse(
    error: HttpError, scope: Scope, receive: Receive, send: Send, headers: dict[str, str] | None = None
) -> None:
    await JSONResponse(error.body(scope["path"]), error.status, {**error.headers, **(headers or {})})(
        scope, receive, send
    )
