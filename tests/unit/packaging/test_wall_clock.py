"""A jump of the wall clock harms nothing in Skim's own code: times are monotonic, except in the places named here."""

import ast
from collections.abc import Iterator

from tests.unit.packaging.test_dependencies import PACKAGES, ROOT

HARMLESS = {
    "actors/failed_starts.py": (
        "tells which of a pool's failed starts with different settings is the last one. After a jump, `skim status` may"
        " show the reason of an earlier one. Pauses count failures."
    ),
    "actors/observability/tracing_otlp.py": "the times of spans are shown, and nothing waits for them",
    "benchmarks/batch.py": "compares with the times of files; a jump spoils one measurement, and nothing waits for it",
}
"""By file, why its reading of the wall clock may be wrong."""

CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""By module or class, the functions that read the wall clock."""


def readers(source: str) -> Iterator[int]:
    """The lines that read the wall clock, or import what reads it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if CLOCKS["time"] & {name.name for name in node.names}:
                yield node.lineno
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in CLOCKS.get(owner, ()):
                yield node.lineno


def test_every_reader_of_the_wall_clock_is_harmless() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if any(readers(file.read_text()))}
    found = {file for file in found if not file.startswith("tests/")}
    assert len(files) > 300
    assert found == HARMLESS.keys(), "use time.monotonic, or say here why a jump of the clock is harmless"


def test_readers_are_found() -> None:
    """Negative control."""
    for source in (
        "import time\nx = time.time()",
        "from time import time, monotonic",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import date\nrun(date.today)",
        "import time\nwait(clock=time.time_ns)",
    ):
        assert list(readers(source)), source
    assert not list(readers("import time\nfrom time import perf_counter\ntime.monotonic()\nloop.time()"))
