"""The two ends of a router's life: it answers before its app exists, and closes its connections before it stops.

Without a router replica, Serve's proxy would hold every request without an answer. So the first router of all waits for
the pools for a limited time: Serve calls an application running when all replicas have started, and KubeRay then moves
the traffic to it. Where other routers answer already, as in an update, it would only take requests away from them: it
then waits without a limit, and its start fails if its app cannot be built.

A client that keeps its connection would come back to an endpoint that has no routers any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from router.options.errors import HttpError
from router.pools.interface import Problem
from skim_common.errors import EngineUnavailableError, SkimError, one_line

logger = logging.getLogger(__name__)

RETRY_S = (1.0, 30.0)
"""The first and the longest pause between two attempts to build the app, in seconds."""

NOT_BUILT = "the router's HTTP app cannot be built"
WAITING = "waiting for a replica of each pool; `skim status` says what keeps them"
_NOT_READY = HttpError(
    503, "ServiceUnavailableError", "this deployment is not ready yet; try again in a moment", retry_after_s=5
)


class Gate:
    """An ASGI app that builds the real app in the background and forwards everything to it; before, it answers 503.

    build: called again, with growing pauses, until it succeeds. startup_timeout_s: how long the start waits for the app
    before it completes without one. others_serve: whether another router has its app. `problem`: why there is no app.
    """

    def __init__(
        self,
        build: Callable[[], Awaitable[Starlette]],
        startup_timeout_s: float,
        others_serve: Callable[[], Awaitable[bool]],
    ) -> None:
        self._build, self._startup_timeout_s, self._others_serve = build, startup_timeout_s, others_serve
        self._decided = asyncio.Event()
        self._app: Starlette | None = None
        self._task: asyncio.Task[None] | None = None
        self._lifespan = AsyncExitStack()
        self._draining = False
        self._running = self._arrived = 0
        self.problem = Problem(WAITING)

    async def start(self) -> None:
        """Begin to build the app; returns when Serve may count this router as started.

        Raises SkimError if the app cannot be built while other routers serve.
        """
        self._task = asyncio.create_task(self._start())
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._decided.wait(), self._startup_timeout_s)
            self._decided.clear()
            if self._app is not None or not await self._others_serve():
                return
            if self.problem.failed:
                await self._end()
                raise SkimError(self.problem.text or NOT_BUILT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # Serve's; the real app's lifespan lies inside this one
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._end()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            app = self._app or _NOT_READY.response(scope["path"])
            self._arrived += 1
            self._running += 1
            try:
                await app(scope, receive, closing(send, lambda: self._draining))
            finally:
                self._running -= 1
        else:
            await (self._app or WebSocketClose(1013))(scope, receive, send)

    def drain(self) -> bool:
        """From now on answers close their connection. Whether a request runs, or has come since the last call."""
        busy = bool(self._running or self._arrived)
        self._draining, self._arrived = True, 0
        return busy

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._lifespan.aclose()

    async def _start(self) -> None:
        pause, longest = RETRY_S
        while True:
            try:
                app = await self._build()
                # This context runs the lifespan of the real app, which Serve does not know.
                await self._lifespan.enter_async_context(app.router.lifespan_context(app))
                self._app, self.problem = app, Problem()
                self._decided.set()
                return
            except EngineUnavailableError as error:
                self.problem = Problem(str(error))
            except Exception as error:
                known = isinstance(error, SkimError)
                reason = str(error) if known else f"{NOT_BUILT} ({type(error).__name__}: {one_line(error)})"
                self.problem = Problem(reason, failed=True)
                self._decided.set()
                logger.error("the router cannot serve: %s", reason, exc_info=None if known else error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def closing(send: Send, is_draining: Callable[[], bool]) -> Send:
    """`send` of an ASGI app whose answer closes its connection if `is_draining` when it begins."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start" and is_draining():
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_closing
