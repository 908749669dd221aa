"""The process of one step: `python -m benchmarks.gpu.proof.child FUNCTION SETTINGS CHECKS`.

FUNCTION: `module:name` of a function (Settings, Checks) -> None, as in `plan.Step`. SETTINGS: JSON. CHECKS: the file
for the checks.
It ends, with the engines that it started, if the process that started it is gone (its standard input ends).
"""

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from pathlib import Path

from benchmarks.gpu.proof.checks import Checks, Settings


def main(function: str, settings: str, file: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    checks = Checks(Path(file))
    module, _, name = function.partition(":")
    package = "" if "." in module else "benchmarks.gpu.proof."
    with checks.part("end"):
        done = getattr(importlib.import_module(package + module), name)(Settings(**json.loads(settings)), checks)
        if inspect.iscoroutine(done):
            asyncio.run(done)


def _end_with_parent() -> None:
    # Not sys.stdin: its lock, held by this thread, would stop the interpreter's end.
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
