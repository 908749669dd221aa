"""The demo pair behind `skim serve`, on real engines."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from cluster.serve.preflight import free_port

ROOT = Path(__file__).parents[2]
SKIM = Path(sys.executable).with_name("skim")
START_TIMEOUT_S = 300


class Served(NamedTuple):
    """A running `skim serve`; log: what it printed."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Ready at" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"skim serve did not start:\n{self.log.read_text()}")
            time.sleep(0.5)


def skim_serve(config: Path, folder: Path) -> Served:
    """Start `skim serve` on a free port. The caller waits for it and stops it."""
    port, log = free_port(), folder / "log"
    with log.open("w") as out:
        command = [SKIM, "serve", config, "--port", str(port)]
        return Served(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out), port, log)


@pytest.fixture(scope="package")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of `skim serve examples/demo.yaml`: both pools on real vLLM engines."""
    served = skim_serve(ROOT / "examples" / "demo.yaml", tmp_path_factory.mktemp("serve"))
    try:
        served.await_ready()
        yield served.url
    finally:
        served.process.send_signal(signal.SIGINT)
        served.process.wait(timeout=60)
    assert served.process.returncode == 0, served.log.read_text()


@pytest.fixture
def client(endpoint: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=endpoint, timeout=120) as http:
        yield http
