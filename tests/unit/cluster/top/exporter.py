"""A node that exports the given texts, one after the other; the last one again and again."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

RECORDED = Path(__file__).with_name("recorded")
FIRST, SECOND = (RECORDED.joinpath(name).read_text() for name in ("first.txt", "second.txt"))
"""Scrapes of a node with mock engines, of the metrics that `skim top` reads; between them 20 prompts in 15 s."""


@contextmanager
def exporting(*texts: str, code: int = 200) -> Iterator[str]:
    """Gives the node's address."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(code if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
