"""Runs the code of an answer against tests, in a process of its own."""

import json
import re
import secrets
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

CPU_SECONDS = 10
WALL_SECONDS = 120.0
"""A busy machine may give the process little of the CPU."""
MEMORY_BYTES = 2**30

_RUNNER = Path(__file__).with_name("runner.py")
_BLOCK = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


def code_of(answer: str) -> str:
    """The first code block of an answer, which may lack its end; the whole answer without one."""
    block = _BLOCK.search(answer)
    return block[1] if block else answer


@cache
def passes(code: str, tests: str, cpu_seconds: int = CPU_SECONDS) -> bool:
    """Whether the code and then the tests, which may use its names, run to their end without an error."""
    return run(code, tests, cpu_seconds) is not None


def run(code: str, check: str, cpu_seconds: int = CPU_SECONDS) -> dict[str, Any] | None:
    """What the runner prints at the end, with what `check` has named `value` (JSON); None if it came to no end.

    The process is `python -I` with an empty environment in an empty folder. It reaches no network, starts no process
    and changes no file (`runner.py`).
    """
    word = secrets.token_hex(16)
    asked = {"code": code, "check": check, "word": word, "seconds": cpu_seconds, "bytes": MEMORY_BYTES}
    command = [sys.executable, "-I", "-B", str(_RUNNER)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                command, input=json.dumps(asked).encode(), capture_output=True, cwd=folder, env={}, timeout=WALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            return None
    for line in reversed(ended.stdout.decode(errors="replace").splitlines()):
        if word in line:
            return dict(json.loads(line))
    return None
