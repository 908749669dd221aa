"""Latency of one exchange on the draft channel, compared with an empty gRPC call and with the same bytes over bare TCP.

The server runs in its own process on loopback and computes no drafts: its replies are ready. All calls take turns in
one run, so other load on the machine slows all of them alike.
"""

import asyncio
import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.draft_channel.client import DraftClient
from kv_transfer.draft_channel.server import DraftServer
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow
from kv_transfer.wire.codec import decode, encode

BATCHES = (1, 8, 32)
TOP_MS = (0, 32)
MAX_DRAFTS = 4

_HOST = "127.0.0.1"
_UNARY = "/skim.Benchmark/Empty"
_SIZES = struct.Struct("<II")
_ACCEPTED = 3
_VOCABULARY = 150_000


def run(*, rounds: int = 1000, warm_up: int = 100, progress: Progress = silent) -> dict[str, Any]:
    """Measure `rounds` exchanges for each number of requests (BATCHES) and of probabilities per draft (TOP_MS).

    `rows` holds for each case the median and the 90th percentile in milliseconds, the bytes of both messages, the time
    to encode and decode both (`codec_median_ms`), and the ratios of the medians to an empty unary gRPC call
    (`ratio_to_unary`) and to bare TCP (`ratio_to_tcp`).
    """
    began = machine()
    cases = [(batch, top_m) for batch in BATCHES for top_m in TOP_MS]
    with _server() as ports, ExitStack() as stack:
        client = DraftClient(f"{_HOST}:{ports['drafts']}", deadline_s=10)
        stack.callback(client.close)
        channel = stack.enter_context(grpc.insecure_channel(f"{_HOST}:{ports['unary']}"))
        tcp = stack.enter_context(socket.create_connection((_HOST, ports["tcp"])))
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        calls = {case: _calls(*case, client, channel, tcp) for case in cases}
        times = _take_turns(calls, rounds, warm_up, progress)
    rows = [_row(*case, times[case]) for case in cases]
    return {"machine": began, "rounds": rounds, "max_drafts": MAX_DRAFTS, "rows": rows}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    return (
        f"{result['rounds']} exchanges per case over loopback, with K = {result['max_drafts']} drafts per request. "
        "The server computes no drafts: its replies are ready."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per case."""
    columns = ["requests", "probabilities per draft", "median ms", "p90 ms"]
    columns += ["ratio to an empty gRPC call", "ratio to bare TCP"]
    numbers = ("median_ms", "p90_ms", "ratio_to_unary", "ratio_to_tcp")
    rows = [[str(row["batch"]), str(row["q_top"]), *(f"{row[n]:.2f}" for n in numbers)] for row in result["rows"]]
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Latency by number of requests: exchanges with and without probabilities, an empty gRPC call and bare TCP."""
    by_width = {width: [row for row in result["rows"] if row["q_top"] == width] for width in TOP_MS}
    widest = by_width[max(TOP_MS)]
    with plots.figure(path, result, height=3.6) as [axes]:
        for width, rows in by_width.items():
            label = f"exchange, {width} probabilities per draft" if width else "exchange without probabilities"
            axes.plot([row["batch"] for row in rows], [row["median_ms"] for row in rows], label=label)
        for name, label in (("unary_median_ms", "empty gRPC call"), ("tcp_median_ms", "the same bytes over bare TCP")):
            axes.plot([row["batch"] for row in widest], [row[name] for row in widest], "--", label=label)
        axes.set(xlabel="requests in one exchange", ylabel="median ms", xscale="log", ylim=(0, None))
        axes.set_xticks(BATCHES, labels=map(str, BATCHES), minor=False)
        axes.minorticks_off()
        axes.legend()


def _calls(
    batch: int, top_m: int, client: DraftClient, channel: grpc.Channel, tcp: socket.socket
) -> dict[str, Callable[[], object]]:
    """The calls of one case, by the name of what they measure."""
    request, reply = _request(batch, top_m), _reply(batch, top_m)
    sent, received = encode(request), len(encode(reply))
    unary = channel.unary_unary(_UNARY)

    def exchange() -> None:
        if client.exchange(request) is None:
            raise RuntimeError(f"an exchange was not answered: {client.counters}")

    def bare() -> None:
        tcp.sendall(_SIZES.pack(len(sent), received) + sent)
        _receive(tcp, received)

    def codec() -> None:
        decode(encode(request), DraftRequest)
        decode(encode(reply), DraftReply)

    return {"exchange": exchange, "unary": lambda: unary(b""), "tcp": bare, "codec": codec}


def _take_turns(
    calls: dict[tuple[int, int], dict[str, Callable[[], object]]], rounds: int, warm_up: int, progress: Progress
) -> dict[tuple[int, int], dict[str, list[float]]]:
    """Milliseconds of each call in each round after the first `warm_up`."""
    times: dict[tuple[int, int], dict[str, list[float]]] = {
        case: {name: [] for name in its_calls} for case, its_calls in calls.items()
    }
    for i in range(warm_up + rounds):
        progress(f"round {i + 1} of {warm_up + rounds}", i / (warm_up + rounds))
        for case, its_calls in calls.items():
            for name, call in its_calls.items():
                start = time.perf_counter()
                call()
                if i >= warm_up:
                    times[case][name].append(1000 * (time.perf_counter() - start))
    return times


def _row(batch: int, top_m: int, times: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "batch": batch,
        "q_top": top_m,
        "request_bytes": len(encode(_request(batch, top_m))),
        "reply_bytes": len(encode(_reply(batch, top_m))),
        "median_ms": medians["exchange"],
        "p90_ms": float(np.percentile(times["exchange"], 90)),
        "codec_median_ms": medians["codec"],
        "unary_median_ms": medians["unary"],
        "tcp_median_ms": medians["tcp"],
        "ratio_to_unary": medians["exchange"] / medians["unary"],
        "ratio_to_tcp": medians["exchange"] / medians["tcp"],
    }


def _request(batch: int, top_m: int) -> DraftRequest:
    tokens = np.arange(_ACCEPTED, dtype=np.int32)
    temperature = 1.0 if top_m else 0.0
    rows = [DraftRow(f"request-{i:08}", 100 + i, tokens, MAX_DRAFTS, temperature, top_m) for i in range(batch)]
    return DraftRequest(0, rows)


def _reply(batch: int, top_m: int) -> DraftReply:
    """The reply to `_request`, with random token ids and random probabilities."""
    rng = np.random.default_rng(0)
    drafts = []
    for row in _request(batch, top_m).rows:
        ids = np.stack([rng.choice(_VOCABULARY, max(top_m, 1), replace=False) for _ in range(MAX_DRAFTS)])
        q_ids, q_probs = ids[:, :top_m], rng.dirichlet(np.ones(max(top_m, 1)), MAX_DRAFTS)[:, :top_m]
        q = q_ids.astype(np.int32).ravel(), q_probs.astype(np.float32).ravel()
        drafts.append(Draft(row.session, row.position + _ACCEPTED, ids[:, 0].astype(np.int32), *q))
    return DraftReply(0, drafts)


@contextmanager
def _server() -> Iterator[dict[str, int]]:
    """Run the three servers in their own process; gives their ports by name."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(ports: Connection) -> None:
    asyncio.run(_serve_all(ports))


async def _serve_all(ports: Connection) -> None:
    replies = {(batch, top_m): _reply(batch, top_m) for batch in BATCHES for top_m in TOP_MS}

    async def answer(request: DraftRequest) -> DraftReply:
        return replace(replies[len(request.rows), request.rows[0].top_m], sequence=request.sequence)

    async def empty(_request: bytes, _context: Any) -> bytes:
        return b""

    unary = grpc.aio.server()
    service, method = _UNARY.strip("/").split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(empty)}
    unary.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    unary_port = unary.add_insecure_port(f"{_HOST}:0")
    await unary.start()
    drafts = DraftServer(answer, _HOST)
    ports.send({"drafts": await drafts.start(), "unary": unary_port, "tcp": _serve_tcp()})
    await asyncio.Event().wait()


def _serve_tcp() -> int:
    """Answer each message of one connection with the number of bytes that it asks for. Returns the port."""
    listener = socket.create_server((_HOST, 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while header := _receive(connection, _SIZES.size):
            sent, wanted = _SIZES.unpack(header)
            _receive(connection, sent)
            connection.sendall(bytes(wanted))

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def _receive(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or no bytes once the connection has ended."""
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
