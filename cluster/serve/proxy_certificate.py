"""A new certificate of the HTTPS endpoint without a restart, in the process of Serve's own HTTP proxy.

Serve calls `renew_certificates` before it starts uvicorn: Ray's environment variable `CALLBACK` names it (Ray 2.60.0).
uvicorn makes one SSLContext for the life of the server. That context's `sni_callback` chooses another one for each
handshake, also if the client sends no name.
"""

import os
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn.config

from kv_transfer.errors import SkimError
from kv_transfer.watched_files import WatchedFiles

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
RENEWING = {CALLBACK: f"{__name__}.renew_certificates"}
"""Environment of a Ray whose proxies renew their certificates."""

Maker = Callable[..., ssl.SSLContext]
File = str | os.PathLike[str]


def renew_certificates() -> list[Any]:
    """Make uvicorn's contexts look at their files at each handshake. Returns no middlewares, which Serve asks for."""
    if not isinstance(uvicorn.config.create_ssl_context, _Renewing):
        uvicorn.config.create_ssl_context = _Renewing(uvicorn.config.create_ssl_context)
    return []


class _Renewing:
    """`uvicorn.config.create_ssl_context`, with a context that passes each handshake to one with the newest files."""

    def __init__(self, make: Maker) -> None:
        self._make = make

    def __call__(self, certfile: File, keyfile: File | None, *given: Any, **options: Any) -> ssl.SSLContext:
        def read() -> ssl.SSLContext:
            try:
                return self._make(certfile, keyfile, *given, **options)
            except OSError as error:  # also ssl.SSLError
                reason = getattr(error, "reason", None) or error.strerror
                raise SkimError(f"router.tls_cert and router.tls_key do not fit together: {reason}") from None

        first = self._make(certfile, keyfile, *given, **options)
        newest = WatchedFiles([certfile, keyfile or certfile], read, "the certificates of the endpoint")

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = newest.current()

        first.sni_callback = choose
        return first
