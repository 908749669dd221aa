"""The system that Skim is compared with: a stock vLLM server of the target, in its own process."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from cluster.serve.preflight import free_port
from kv_transfer.errors import SkimError

_START_LIMIT_S = 300


@contextmanager
def dense_server(model: Path, name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Run `python -m vllm.entrypoints.openai.api_server` inside the context; gives its base URL once it answers.

    options: those of `vllm serve`, named with underscores; the value true makes a flag. Raises SkimError if the server
    does not start.
    """
    port = free_port()
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    words += ["--host", "127.0.0.1", "--served-model-name", name, *option_words(options)]
    with tempfile.TemporaryFile("w+") as log:
        # In its own process group, so that the engine's processes can be ended with it.
        process = subprocess.Popen(
            words, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            _await_health(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """The options of a command of vLLM, named with underscores; the value true makes a flag."""
    words = []
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def _await_health(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()] or ["it printed nothing"]
    raise SkimError(f"the vLLM server to compare with did not start: {lines[-1].strip():.300}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
