"""A router that is about to stop sends its clients away: it still answers, and each answer closes its connection.

A client that keeps its connection would otherwise come back to an endpoint that has no routers any more.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def closing(send: Send, is_draining: Callable[[], bool]) -> Send:
    """`send` of an ASGI app whose answer closes its connection if `is_draining` when it begins."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start" and is_draining():
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_closing


class DrainingApp:
    """An ASGI app that forwards everything to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._draining = False
        self._running = self._arrived = 0

    def drain(self) -> bool:
        """From now on answers close their connection. Whether a request runs, or has come since the last call."""
        busy = bool(self._running or self._arrived)
        self._draining, self._arrived = True, 0
        return busy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._arrived += 1
        self._running += 1
        try:
            await self._app(scope, receive, closing(send, lambda: self._draining))
        finally:
            self._running -= 1
