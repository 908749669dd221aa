"""The caller of `router.vllm_front.program`: a process with vLLM's HTTP front, which checks options before a start.

It is started once for all questions of a command.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from typing import Any

from cluster.config.schema import DeploymentConfig
from cluster.config.vllm_options import OWN
from skim_common.errors import SkimError
from skim_common.models.source import is_within_reach, public_name

PROGRAM = "router.vllm_front.program"


class FrontProcess:
    """The process. It imports vLLM beside what the caller does meanwhile."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # it lasts as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM],
            env={**os.environ, "VLLM_TARGET_DEVICE": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer. question: a name of `router.vllm_front.program.QUESTIONS`. Raises SkimError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            line = json.dumps({"question": question, "folder": os.getcwd(), **arguments}, default=str)
            print(line, file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):  # the process has ended
            self._errors.seek(0)
            cause = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            raise SkimError(f"vLLM cannot read its options on this machine: {cause}") from None
        if "error" in answer:
            raise SkimError(answer["error"])
        return answer["answer"]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


@cache
def front_process() -> FrontProcess:
    """The process of this command; the first call starts it. It ends with the command at the latest."""
    atexit.register(end_front_process)
    return FrontProcess()


def end_front_process() -> None:
    if front_process.cache_info().currsize:
        front_process().end()
        front_process.cache_clear()


def begin_check(config: DeploymentConfig) -> None:
    """Start the process that `check_front` will ask, if it will ask."""
    if _gives_options(config):
        front_process()


def check_front(config: DeploymentConfig) -> None:
    """Raise SkimError for options that vLLM refuses, if the router's app cannot be built with them, or an adapter be
    served. Without options nothing is asked. The process ends.
    """
    target = config.target
    try:
        if _gives_options(config):
            front_process().ask(
                "check_front",
                model=target.model,
                root=public_name(target.model),
                names=[config.served_model_name, *config.model_aliases],
                front_options=config.front_options,
                engine_options=target.engine_options,
                python_path=target.env.get("PYTHONPATH", ""),
                settings=config.router.model_dump(),
                is_here=is_within_reach(target.model),
                pools=_vllm_options(config),
            )
    finally:
        end_front_process()


def _gives_options(config: DeploymentConfig) -> bool:
    return bool(config.router.api_keys_file or config.front_options or any(_vllm_options(config).values()))


def _vllm_options(config: DeploymentConfig) -> dict[str, dict[str, Any]]:
    """The options of `vllm serve` of each pool that runs vLLM."""
    return {
        name: {option: value for option, value in pool.engine_options.items() if option not in OWN}
        for name, pool in config.pools.items()
        if pool.engine == "vllm"
    }
