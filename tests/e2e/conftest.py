"""Live deployments for the tests: real engines through the command line, mock engines through the library."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.preflight import free_port

ROOT = Path(__file__).parents[2]
SKIM = Path(sys.executable).with_name("skim")
START_TIMEOUT_S = 300


@pytest.fixture(scope="package")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of `skim serve examples/demo.yaml`: both pools on real vLLM engines."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [SKIM, "serve", "examples/demo.yaml", "--port", str(port)], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        _await_ready(process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert process.returncode == 0, log.read_text()


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while "Ready at" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"skim serve did not start:\n{log.read_text()}")
        time.sleep(0.5)


@pytest.fixture(scope="module")
def mock_endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """Base URL of a deployment of mock engines; the module's MOCK_SETTINGS override settings by dotted name."""
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    from cluster.config import config_from_flags
    from cluster.deployment import deployed

    settings: dict[str, Any] = {
        "speculator.engine": "mock",
        "target.engine": "mock",
        "speculator.engine_options": {},
        "target.engine_options": {},
        "router.port": free_port(),
        **request.module.MOCK_SETTINGS,
    }
    with deployed(config_from_flags(ROOT / "examples" / "demo.yaml", settings), progress=lambda line: None) as url:
        yield url


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """httpx over whichever endpoint the test's module uses."""
    name = "mock_endpoint" if hasattr(request.module, "MOCK_SETTINGS") else "endpoint"
    with httpx.Client(base_url=request.getfixturevalue(name), timeout=120) as http:
        yield http
