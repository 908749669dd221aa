"""A pytest plugin for vLLM's own tests: their servers are of the system that is tested, and modules share them.

It runs where `tests` means vLLM's folder, so it imports nothing of this repository. tests/peer/suite.py sets these
variables:

- PEER_COMMAND: JSON, the words that start a server; the flags follow. `{model}` stands for the model's name, and
  `{config}` for a file with the text of PEER_CONFIG, in which `{model}` is replaced too.
- PEER_SHARED: JSON, a list: the `model`, the `flags` and the `environment` of each server that modules share.
- PEER_WORK: a folder for reports and logs. PEER_PYTHONPATH: that of the servers.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import utils

WORK = Path(os.environ["PEER_WORK"])
WORDS: list[str] = json.loads(os.environ["PEER_COMMAND"])
SHARED: list[dict[str, Any]] = json.loads(os.environ["PEER_SHARED"])
UNIMPORTANT = {
    *("--attention-backend", "--dtype", "--enforce-eager", "--gpu-memory-utilization", "--load-format"),
    *("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--no-enable-prefix-caching"),
}
"""Flags that say how large and how fast the server is, not what the tests ask of it."""
SIZE = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "8192", "--max-num-seqs", "32"]
"""In their place."""


def read_flags(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each flag, by its name."""
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("-"):
            name, is_one_word, value = word.partition("=")
            values = flags[name.replace("_", "-")] = [value] if is_one_word else []
        else:
            values.append(word)
    return {name: values for name, values in flags.items() if name not in UNIMPORTANT}


def is_part(flags: dict[str, list[str]], whole: dict[str, list[str]]) -> bool:
    return all(name in whole and set(values) <= set(whole[name]) for name, values in flags.items())


def shared_with(model: str, flags: dict[str, list[str]], options: dict[str, Any]) -> tuple[Any, ...] | None:
    """The model, flags and options of the first server of SHARED that has all that is asked for."""
    for shared in SHARED:
        whole, environment = read_flags(shared["flags"]), shared["environment"]
        known = options.keys() <= {"env_dict"} and (options.get("env_dict") or {}).items() <= environment.items()
        if known and model in whole["--served-model-name"] and is_part(flags, whole):
            return shared["model"], whole, {"env_dict": environment}
    return None


class Server(utils.RemoteOpenAIServer):  # type: ignore[misc]
    """A server that the next module takes over if it can. One runs at a time."""

    running: "tuple[str, Server] | None" = None
    started = 0

    def __init__(self, model: str, vllm_serve_args: list[str], **options: Any) -> None:
        flags = read_flags(vllm_serve_args)
        model, flags, options = shared_with(model, flags, options) or (model, flags, options)
        key = json.dumps([model, flags, options])
        if Server.running and Server.running[0] == key:
            self.__dict__ = Server.running[1].__dict__
            return
        Server.end()
        words = [word for name, values in flags.items() for word in (name, *values)]
        try:
            super().__init__(model, [*words, *SIZE], **options)
        except BaseException:  # pytest-timeout's is no Exception, and vLLM's class ends its server after those alone
            if hasattr(self, "proc"):
                self._shutdown()
            raise
        Server.running = (key, self)

    def __exit__(self, *_: object) -> None:
        """The next module may want it."""

    @classmethod
    def end(cls) -> None:
        """Keeps what the server says of itself: Skim tells in which mode prompts ran."""
        running, Server.running = Server.running, None
        if running:
            with suppress(requests.RequestException):
                metrics = requests.get(running[1].url_for("metrics"), timeout=30).text
                (WORK / f"metrics-{Server.started}.txt").write_text(metrics)
            running[1]._shutdown()

    def _pre_download_model(self, model: str, args: Any) -> None:
        """The cache has it."""

    def _get_process_termination_timeout(self) -> float:
        return 60.0

    def _start_server(self, model: str, vllm_serve_args: list[str], env_dict: dict[str, str] | None) -> None:
        Server.started += 1
        config = WORK / f"server-{Server.started}.yaml"
        config.write_text(os.environ["PEER_CONFIG"].replace("{model}", model))
        words = [word.replace("{model}", model).replace("{config}", str(config)) for word in WORDS]
        environment = {**os.environ, **(env_dict or {}), "PYTHONPATH": os.environ["PEER_PYTHONPATH"]}
        with (WORK / f"server-{Server.started}.log").open("w") as log:
            print(*words, *vllm_serve_args, file=log, flush=True)
            self.proc = subprocess.Popen(
                [*words, *vllm_serve_args], env=environment, stdout=log, stderr=log, start_new_session=True
            )


utils.RemoteOpenAIServer = Server
outcomes: dict[str, list[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """One outcome per test: that of the first of its phases that did not pass, with the first line of its cause."""
    report: pytest.TestReport = yield
    if report.when == "setup":
        outcomes[item.nodeid] = ["passed", ""]
    if report.outcome != "passed" and outcomes[item.nodeid][0] == "passed":
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")] or ["  ?"]
        outcomes[item.nodeid] = [report.outcome, lines[0][1:].strip()]
    return report


def pytest_sessionfinish() -> None:
    (WORK / "outcomes.json").write_text(json.dumps(outcomes, indent=1))
    Server.end()
