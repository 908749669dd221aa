"""Steps for the tests of the session, which write a result as its steps do."""

import time
from pathlib import Path

from benchmarks.gpu.session.result import Result


def whole(settings, checks):
    with (Path(settings.folder) / "runs").open("a") as runs:
        runs.write("whole\n")
    Result(settings, "whole").whole({"rows": [1, 2]})
    checks.measured("ratio", 2.5, "times faster than dense")


def overruns(settings, checks):
    file = Result(settings, "overruns")
    file.partial({"rows": [1]})
    checks.measured("first", 1.5, "times faster than dense")
    time.sleep(600)
    file.whole({"rows": [1, 2]})


def fails(settings, checks):
    raise RuntimeError("no engine")
