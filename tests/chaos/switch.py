"""A TCP switch: new connections go to the chosen backend, old ones stay, like a Kubernetes Service."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

HOST = "127.0.0.1"


class Switch:
    """open: connections that are open, by the port of their backend. port: where clients connect, once it listens."""

    def __init__(self, backend: int) -> None:
        """backend: the port on this machine that gets new connections."""
        self.backend = backend
        self.open: Counter[int] = Counter()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass bytes both ways until both ends are closed. A backend that cannot be reached closes the connection."""
        backend = self.backend
        try:
            server, to_server = await asyncio.open_connection(HOST, backend)
        except OSError:
            to_client.transport.abort()
            return
        self.open[backend] += 1
        try:
            await asyncio.gather(_pass(client, to_server), _pass(server, to_client))
        finally:
            self.open[backend] -= 1
            for writer in (to_client, to_server):
                writer.close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Bytes in one direction, then its end. A reset is passed on as one."""
    try:
        while chunk := await source.read(65536):
            sink.write(chunk)
            await sink.drain()
    except OSError:
        sink.transport.abort()
        return
    with suppress(OSError):
        sink.write_eof()
