"""A proxy that notes what it is asked for, and gives none of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
"""The environment variables that name a proxy; each has a form in lower case."""


@contextmanager
def recording_proxy() -> Iterator[tuple[str, list[str]]]:
    """Gives its URL, and the first line of each request that it got."""
    asked: list[str] = []

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline().decode(errors="replace").strip())
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def proxy_variables(url: str) -> dict[str, str]:
    """An environment that names this proxy for every call, and no exception from it."""
    return {form: url for name in VARIABLES for form in (name, name.lower())} | {"NO_PROXY": "", "no_proxy": ""}
