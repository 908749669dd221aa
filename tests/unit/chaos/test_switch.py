"""The switch of the update run: who is connected stays, who connects goes to the chosen backend."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.support.switch import HOST, Switch


@asynccontextmanager
async def named(name: bytes) -> AsyncIterator[int]:
    """The port of a server that answers each line with its name, and closes after the line `end`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()) and line != b"end\n":
            writer.write(name + line)
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def say(line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(line)
    return await asyncio.wait_for(reader.readline(), 30)


async def switched() -> tuple[list[bytes], dict[int, int], bytes]:
    """What three connections hear, two of them after the switch; how many are open; what follows the close."""
    async with named(b"old ") as old, named(b"new ") as new, Switch(old).listening() as switch:
        kept = await asyncio.open_connection(HOST, switch.port)
        heard = [await say(b"1\n", *kept)]
        switch.backend = new
        fresh = await asyncio.open_connection(HOST, switch.port)
        heard += [await say(b"2\n", *kept), await say(b"3\n", *fresh)]
        counts = {"old": switch.open[old], "new": switch.open[new]}
        end = await say(b"end\n", *kept)
        for _, writer in (kept, fresh):
            writer.close()
        return heard, counts, end


def test_connections_stay_and_new_ones_go_to_the_new_backend():
    heard, counts, end = asyncio.run(switched())
    assert heard == [b"old 1\n", b"old 2\n", b"new 3\n"]
    assert counts == {"old": 1, "new": 1}
    assert end == b""


def test_a_backend_that_is_gone_closes_the_connection():
    async def connect(port: int) -> bytes:
        async with Switch(port).listening() as switch:
            reader, _ = await asyncio.open_connection(HOST, switch.port)
            return await asyncio.wait_for(reader.read(), 30)

    with socket.socket() as gone:  # nobody else gets the port, and nobody listens on it
        gone.bind((HOST, 0))
        assert asyncio.run(connect(gone.getsockname()[1])) == b""
