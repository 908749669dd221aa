"""The hostile clients do what their names say, and what `skim bench hostile` makes of the times."""

import asyncio
from collections import Counter

import pytest

from benchmarks.load import hostile
from benchmarks.load.hostile import NONE, HostileSettings, describe, table
from benchmarks.load.hostile_clients import KINDS, Kind, run
from skim_common.errors import SkimError
from tests.unit.router.conftest import until


class Server:
    """Reads what clients send. It answers 413 and closes after `most` bytes of one connection."""

    def __init__(self, most):
        self._most = most
        self.connections, self.received = 0, Counter()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        number = self.connections
        while part := await reader.read(65536):
            self.received[number] += len(part)
            if self.received[number] > self._most:
                writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
                break
        writer.close()


async def met(name, clients, most, enough):
    """What some clients of a kind saw, and their server, once `enough(server)`."""
    stop, ready = asyncio.Event(), asyncio.Event()
    async with Server(most) as server:
        running = asyncio.create_task(run(Kind(clients, KINDS[name].send), server.port, stop, ready.set))
        await asyncio.wait_for(ready.wait(), 30)
        await until(lambda: enough(server))
        stop.set()
        return await running, server


async def test_idle_connections_send_nothing():
    seen, server = await met("idle connections", 20, 0, lambda server: server.connections == 20)
    assert not seen
    assert not server.received


@pytest.mark.parametrize("name", ["slow headers", "slow bodies"])
async def test_slow_clients_go_on_and_never_end(name):
    def enough(server):
        return len(server.received) == 3 and min(server.received.values()) > 130

    seen, server = await met(name, 3, 10**9, enough)
    assert not seen
    assert max(server.received.values()) < 10**5


@pytest.mark.parametrize("name", ["bodies of 64 MiB", "chunks without end"])
async def test_who_is_refused_comes_again(name):
    seen, server = await met(name, 2, 10**5, lambda server: server.connections >= 4)
    assert seen["413"] + seen["closed"] >= 2
    assert server.connections >= 4


def result():
    rows = [
        {"kind": NONE, "pairs": [[200.0, 202.0]], "ratio": [1.01], "answered": {}},
        {
            "kind": "slow headers",
            "pairs": [[200.0, 220.0], [100.0, 120.0]],
            "ratio": [1.1, 1.2],
            "answered": {"408": 50},
        },
    ]
    return {"settings": vars(HostileSettings("t", "s")), "rows": rows}


def test_the_table_has_the_ratio_of_each_kind():
    columns, (none, slow) = table(result())
    assert dict(zip(columns, none, strict=True))["they were answered"] == "-"
    found = dict(zip(columns, slow, strict=True))
    assert (found["how many"], found["ratio"], found["of the rounds"]) == ("50", "1.15", "1.10 to 1.20")
    assert found["they were answered"] == "408 (50)"
    assert "2048 tokens" in describe(result())


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    hostile.plot(result(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size


async def test_the_clients_run_in_a_process_of_their_own():
    async with Server(10**9) as server:
        answered = Counter()
        async with hostile._hostile("slow headers", server.port, answered):
            assert server.connections == KINDS["slow headers"].clients
        assert not answered
        async with hostile._hostile(NONE, server.port, answered):
            pass


async def test_clients_that_cannot_connect_are_told(monkeypatch, unused_tcp_port):
    monkeypatch.setattr(hostile, "READY_S", 0.5)
    with pytest.raises(SkimError, match="could not connect"):
        async with hostile._hostile("slow headers", unused_tcp_port, Counter()):
            pass
