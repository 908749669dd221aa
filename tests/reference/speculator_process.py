"""A speculator (model, draft service, server) in its own process, which a test can stop, continue, kill and replace."""

import asyncio
import signal
import subprocess
import sys
from types import TracebackType

from kv_transfer.draft_channel.server import DraftServer
from speculator_service.drafting.drafter import DraftService
from tests.reference.model_drafter import ModelDrafter

HOST = "127.0.0.1"


class SpeculatorProcess:
    """Loads the model in folder `model` at once, and listens later: so it can quickly replace a dead process."""

    def __init__(self, model: str) -> None:
        command = [sys.executable, "-m", "tests.reference.speculator_process", model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = 0

    async def listen(self, port: int = 0) -> None:
        """Serve drafts on `port`, a free one by default."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{port}\n")
        self._process.stdin.flush()
        self.port = int(await asyncio.to_thread(self._process.stdout.readline))

    def stand_still(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with all its sessions; idempotent."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "SpeculatorProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


async def _main(model: str) -> None:
    service = DraftService(ModelDrafter(model))
    port = int(await asyncio.to_thread(sys.stdin.readline))
    print(await DraftServer(service.handle, HOST, port).start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
