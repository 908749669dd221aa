"""The demo pair behind `skim serve` on real engines, and a deployment of slow mock engines with a split target."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
import ray
import yaml
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

from actors.ray_hooks.ray_core import init_on_loopback, is_on_loopback
from actors.ray_hooks.serve import forget_earlier_serve
from demo_models.ports import free_port

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

    def join_ray(self) -> None:
        """Connect this process to the Ray cluster that it started. Other clusters may run on this machine.

        For an address that is not `auto`, `ray.init` does not take over the cluster's token by itself.
        """
        forget_earlier_serve()  # of the Ray of another module
        maybe_enable_token_auth_if_token_available()
        address = self._ray_address()
        init_on_loopback(is_on_loopback(address))
        ray.init(address=address, log_to_driver=False)

    def _ray_address(self) -> str:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if found := re.search(r"--gcs-address=(\S+)", " ".join(child.cmdline())):
                    return found[1]
        raise AssertionError("skim serve has no Ray cluster")

    def stop(self) -> None:
        """Ctrl-C; asserts that it ends without an error."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)
        assert self.process.returncode == 0, self.log.read_text()


def skim_serve(config: Path, folder: Path, **environment: str) -> Served:
    """Start `skim serve` on a free port, with more variables. The caller waits for it and stops it."""
    port, log = free_port(), folder / "log"
    with log.open("w") as out:
        command = [SKIM, "serve", config, "--port", str(port)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **environment})
        return Served(process, port, log)


@contextmanager
def serving(settings: Mapping[str, Any], folder: Path) -> Iterator[Served]:
    """`skim serve` with these settings, ready, until the context ends."""
    config = folder / "skim.yaml"
    config.write_text(yaml.safe_dump(settings))
    served = skim_serve(config, folder)
    try:
        served.await_ready()
        yield served
    finally:
        served.stop()


@contextmanager
def serving_slow_mocks(folder: Path, keep_alive_s: float) -> Iterator[Served]:
    """`skim serve` with mock engines and a split target: each prompt takes five seconds to its first token."""
    models = ROOT / "demo_models"
    mock: dict[str, Any] = {"engine": "mock", "cpus_per_replica": 0.1}
    settings = {
        "served_model_name": "skim-demo",
        "speculator": {"model": str(models / "speculator"), "engine_options": {"latency_ms": 5000.0}, **mock},
        "target": {"model": str(models / "target"), "topology": "split", **mock},
        "selection": {"selector": "speculator"},
        "decode": {"method": "none"},
        "router": {
            "speculative_prefill": "always", "min_prompt_tokens": 256, "keep_alive_s": keep_alive_s, "cpus": 0.1
        },
    }  # fmt: skip
    with serving(settings, folder) as served:
        yield served


@pytest.fixture(scope="session")
def slow_mocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_slow_mocks(tmp_path_factory.mktemp("slow"), keep_alive_s=0.5) as served:
        yield served


@pytest.fixture(scope="package")
def demo_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`skim serve` with examples/demo.yaml in float32: both pools on real vLLM engines.

    In bfloat16, a verification of several tokens rounds otherwise than a step of one token: answers with drafts could
    then differ from plain ones where two tokens are nearly equally likely.
    """
    folder = tmp_path_factory.mktemp("serve")
    settings = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    for pool in ("speculator", "target"):
        settings[pool]["model"] = str((ROOT / "examples" / settings[pool]["model"]).resolve())
        settings[pool]["engine_options"]["dtype"] = "float32"
    settings["router"]["speculative_prefill"] = "always"
    settings["selection"]["selector"] = "speculator"
    with serving(settings, folder) as served:
        yield served


@pytest.fixture(scope="package")
def endpoint(demo_pair: Served) -> str:
    """Base URL of the demo pair."""
    return demo_pair.url


@pytest.fixture
def client(endpoint: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=endpoint, timeout=120) as http:
        yield http
