"""A trace collector that decodes and stores what it receives by OTLP over HTTP."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 60


@dataclass
class ReceivedSpan:
    """service: the resource's `service.name`. instance: its `service.instance.id`, a process."""

    name: str
    service: str
    instance: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """url: the endpoint. spans: all that came."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            who = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        span.name,
                        who.get("service.name", ""),
                        who.get("service.instance.id", ""),
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _values(span.attributes),
                    )
                    for span in scope.spans
                ]

    def trace(self, trace_id: str, expected: set[str]) -> list[ReceivedSpan]:
        """The spans of a trace. Waits for the spans named in `expected`; batches come every few seconds."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = [span for span in list(self.spans) if span.trace_id == trace_id]
            missing = expected - {span.name for span in found}
            if not missing:
                return found
            assert time.monotonic() < deadline, f"no {sorted(missing)} among {sorted(span.name for span in found)}"
            time.sleep(0.2)


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in attributes}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """Listens on a free local port inside the `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # http.server's name
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                receiver.add(body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield receiver
        server.shutdown()
