"""A TCP switch: new connections go to the chosen backend, old ones stay, like a Kubernetes Service.

It can also stand for a network that is slow, or away.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Self

HOST = "127.0.0.1"


class Switch:
    """open: connections that are open, by the port of their backend. port: where clients connect, once it listens.

    delay_s: so long each piece of data takes in each direction.
    """

    def __init__(self, backend: int) -> None:
        """backend: the port of this machine that gets new connections."""
        self.backend = backend
        self.open: Counter[int] = Counter()
        self.port = 0
        self.delay_s = 0.0
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop

    def cut(self) -> None:
        """All connections are reset, and new ones until `mend`. From any thread."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._reset)

    def mend(self) -> None:
        """New connections reach the backend again."""
        self._is_cut = False

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        self._loop = asyncio.get_running_loop()
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
            if self._is_cut:
                raise ConnectionError
            server, to_server = await asyncio.open_connection(HOST, backend)
        except OSError:
            to_client.transport.abort()
            return
        self.open[backend] += 1
        self._writers |= {to_client, to_server}
        try:
            await asyncio.gather(self._pass(client, to_server), self._pass(server, to_client))
        finally:
            self.open[backend] -= 1
            self._writers -= {to_client, to_server}
            for writer in (to_client, to_server):
                writer.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Bytes in one direction, then its end. A reset is passed on as one."""
        try:
            while chunk := await source.read(65536):
                await asyncio.sleep(self.delay_s)
                sink.write(chunk)
                await sink.drain()
        except OSError:
            sink.transport.abort()
            return
        with suppress(OSError):
            sink.write_eof()


@contextmanager
def threaded(backend: int) -> Iterator[Switch]:
    """A switch that listens in a thread of its own."""
    switch, listens, over = Switch(backend), threading.Event(), threading.Event()

    async def run() -> None:
        async with switch.listening():
            listens.set()
            await asyncio.to_thread(over.wait)
            switch.cut()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    listens.wait()
    try:
        yield switch
    finally:
        over.set()
        thread.join()
