"""What `child` runs: `python -m benchmarks.gpu.steps.work FUNCTION SETTINGS CHECKS`.

FUNCTION: `module:name` of a function (Settings, Checks) -> None, as in `step.Step`. SETTINGS: JSON. CHECKS: the file
for the checks.
"""

import asyncio
import importlib
import inspect
import json
import sys
from pathlib import Path

from benchmarks.gpu.steps.checks import Checks, Settings


def main(function: str, settings: str, file: str) -> None:
    checks = Checks(Path(file))
    module, _, name = function.partition(":")
    with checks.part("end"):
        done = getattr(importlib.import_module(module), name)(Settings(**json.loads(settings)), checks)
        if inspect.iscoroutine(done):
            asyncio.run(done)


if __name__ == "__main__":
    main(*sys.argv[1:])
