"""A port of its own for the HTTP proxy of each Ray node on this machine, as each pod has an address of its own."""

import os
import socket
from typing import Any

from cluster.serve.pod_draining import closing_middlewares

PROXY_PORT = "SKIM_TEST_PROXY_PORT"
SERVE_PORT = 8000


def on_own_port() -> list[Any]:
    """In the process of a proxy: as `closing_middlewares`, and what binds to Serve's port gets the port of its pod."""

    class Elsewhere(socket.socket):
        def bind(self, address: Any) -> None:
            host, port = address[:2]
            super().bind((host, int(os.environ[PROXY_PORT])) if port == SERVE_PORT else address)

    # Serve's start_asgi_http_server looks it up there.
    socket.socket = Elsewhere  # type: ignore[misc]
    return closing_middlewares()
