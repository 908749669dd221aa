"""Draft servers for the channel's tests: in a thread, or in a process that a test can kill and stop."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from kv_transfer.draft_channel import DraftClient, DraftServer, Handler
from kv_transfer.draft_tls import CertificateFiles
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from tests.reference.certificates import Tls

HOST = "127.0.0.1"
REQUEST = DraftRequest([DraftRow("a", 2, np.array([5, 6], np.int32), 3), DraftRow("b", 0, np.empty(0, np.int32), 1)])


def answer(request: DraftRequest) -> DraftReply:
    """Answer each row with max_drafts drafts: 0, 1, 2, ..."""
    return DraftReply({row.session: Drafted(np.arange(row.max_drafts, dtype=np.int32)) for row in request.rows})


async def honest(request: DraftRequest) -> DraftReply:
    return answer(request)


@contextlib.contextmanager
def serving(handler: Handler, port: int = 0, *, tls: Tls | None = None, **options) -> Iterator[str]:
    """Run a DraftServer on its own event loop, as in an actor. Gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    try:
        server = DraftServer(handler, HOST, port, tls=CertificateFiles(*tls) if tls else None, **options)
        try:
            yield f"{HOST}:{run(server.start())}"
        finally:
            run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def client(address: str, *, tls: Tls | None = None, **options) -> Iterator[DraftClient]:
    """A client with a long deadline and, unless `options` say otherwise, short pauses."""
    files = CertificateFiles(*tls) if tls else None
    it = DraftClient(address, **{"deadline_s": 60, "pauses_s": (0.01, 0.1), "tls": files, **options})
    try:
        yield it
    finally:
        it.close()


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds. The time limit only ends a test that hangs."""
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@contextlib.contextmanager
def process(port: int = 0) -> Iterator[tuple[subprocess.Popen, int]]:
    """A correct server in a process, killed at the end. Gives the process and its port."""
    command = [sys.executable, "-m", "tests.unit.kv_transfer.channel_peer", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as peer:
        try:
            yield peer, int(peer.stdout.readline())
        finally:
            peer.kill()


async def _main(port: int) -> None:
    print(await DraftServer(honest, HOST, port).start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
