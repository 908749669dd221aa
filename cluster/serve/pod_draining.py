"""Serve's HTTP proxy in a pod sends its clients away before the pod ends.

Clients keep connections to a pod that no Kubernetes Service names any more. Their requests would fail when it ends.
The pod's hook makes a file first; from then on, and when Serve drains the proxy, its answers close their connections.
This needs no other part: the head of a cluster that is deleted is often gone before the hook of another pod runs.
"""

import os
from pathlib import Path

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.ray_hooks.serve import draining_of
from router.http.gate import closing

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
DRAINING_FILE = "SKIM_DRAINING_FILE"
"""Environment variable with the path of the file that the hook makes."""


def closing_middlewares() -> list[Middleware]:
    """What Serve's proxy runs its app in: it calls the function that `CALLBACK` names (Ray 2.60.0)."""
    return [Middleware(PodProxy, file=Path(os.environ[DRAINING_FILE]))]


DRAINING_SWITCHES = {CALLBACK: f"{__name__}.{closing_middlewares.__name__}", DRAINING_FILE: "/tmp/skim-draining"}
"""Environment of a pod: `/tmp` is its own."""


class PodProxy:
    """An ASGI app that forwards everything to `app`: Serve's HTTPProxy, in middlewares of Serve's own."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app, self._file = app, file
        self._proxy_drains = draining_of(app)

    def _is_draining(self) -> bool:
        return self._file.exists() or self._proxy_drains()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, closing(send, self._is_draining))
