"""Clients that harm a server, in a process of their own: `python -m benchmarks.load.hostile_clients KIND PORT`.

It prints a line once they are connected, and stops when its standard input ends. Then it prints, as JSON, how often
the server answered with which status, and how often it closed a connection without one ("closed").
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

HOST = "127.0.0.1"
AGAIN_S = 0.2
"""Pause before a client that was refused comes again."""

_POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_MIB = 2**20


@dataclass(frozen=True)
class Kind:
    """clients: how many. send: what each one sends, until the server ends the connection."""

    clients: int
    send: Callable[[], AsyncIterator[bytes]]


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _slow_headers() -> AsyncIterator[bytes]:
    yield _POST
    while True:
        await asyncio.sleep(0.2)
        yield b"x-more: 1\r\n"


async def _slow_body() -> AsyncIterator[bytes]:
    yield _POST + b"content-length: %d\r\n\r\n" % (8 * _MIB)
    while True:
        yield b"x" * 1024
        await asyncio.sleep(0.2)


async def _large_body() -> AsyncIterator[bytes]:
    yield _POST + b"content-length: %d\r\n\r\n" % (64 * _MIB)
    for _ in range(64 * 16):
        yield b"x" * (_MIB // 16)
    await asyncio.Event().wait()


async def _endless_chunks() -> AsyncIterator[bytes]:
    yield _POST + b"transfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        await asyncio.sleep(0.05)


async def _deep_bodies() -> AsyncIterator[bytes]:
    content = b'[{"type":"text","text":"x","content":' * 300 + b'"x"' + b"}]" * 300
    body = b'{"model":"x","speculative_prefill":true,"messages":[{"role":"user","keep":1,"content":%s}]}' % content
    while True:
        yield _POST + b"content-length: %d\r\n\r\n" % len(body) + body
        await asyncio.sleep(0.05)


KINDS = {
    "idle connections": Kind(1000, _nothing),
    "slow headers": Kind(50, _slow_headers),
    "slow bodies": Kind(50, _slow_body),
    "bodies of 64 MiB": Kind(4, _large_body),
    "chunks without end": Kind(20, _endless_chunks),
    "bodies of 300 levels": Kind(100, _deep_bodies),
}


async def _client(kind: Kind, port: int, seen: Counter[str], connected: Callable[[], None]) -> None:
    """One client: it connects, harms, and comes again when the server has ended the connection."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            seen["no connection"] += 1
            await asyncio.sleep(AGAIN_S)
            continue
        connected()
        sending = asyncio.create_task(_send(kind, writer))
        try:
            line = await reader.readline()
            seen[line.split()[1].decode() if line.startswith(b"HTTP/") else "closed"] += 1
        except OSError:
            seen["closed"] += 1
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()
        await asyncio.sleep(AGAIN_S)


async def _send(kind: Kind, writer: asyncio.StreamWriter) -> None:
    async for part in kind.send():
        writer.write(part)
        await writer.drain()


async def run(kind: Kind, port: int, stop: asyncio.Event, ready: Callable[[], None]) -> Counter[str]:
    """Run the clients until `stop`. ready: called once all have been connected. What they saw, by status."""
    seen: Counter[str] = Counter()
    left = kind.clients

    def connected() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ready()

    tasks = [asyncio.create_task(_client(kind, port, seen, connected)) for _ in range(kind.clients)]
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def main(name: str, port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    seen = await run(KINDS[name], port, stop, lambda: print("ready", flush=True))
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
