"""Runs rings of tests one after the other: `python -m tests.rings [--night] RING ...`. It ends with a table.

A ring that fails keeps no other ring from running. Exit status 1 if anything failed, also if a ring ran no test.
No limit of time holds for a ring: pytest-timeout ends a single test that hangs.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree  # nosec B405: reads what pytest wrote

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
REPORTS = ROOT / "build" / "rings"
CODE = (
    *("actors", "benchmarks", "cluster", "evals", "kv_transfer"),
    *("router", "skim", "skim_common", "speculator_service", "target_service", "vllm_hooks"),
)
PYTEST = (sys.executable, "-m", "pytest", "-q")
# Longest modules first; which modules stay together is in tests/engine/conftest.py.
TWO_WORKERS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
NIGHT = ("-m", "nightly")


@dataclass(frozen=True)
class Result:
    """What became of a ring. ok: whether all of its programs ended well, and tests ran."""

    ring: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    ok: bool = False


@dataclass(frozen=True)
class Ring:
    """Programs of which each counts as one test, or pytest, which counts for itself."""

    says: str
    programs: tuple[Sequence[str | Path], ...]
    is_pytest: bool = False

    def run(self, name: str) -> Result:
        print(f"\n== {name}: {self.says}", flush=True)
        began = time.monotonic()
        result = self._pytest(name) if self.is_pytest else self._programs(name)
        return replace(result, minutes=(time.monotonic() - began) / 60)

    def _programs(self, name: str) -> Result:
        ended = [_status(program) == 0 for program in self.programs]
        return Result(name, passed=sum(ended), failed=ended.count(False), ok=all(ended))

    def _pytest(self, name: str) -> Result:
        report = REPORTS / f"{name}.xml"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        [program] = self.programs
        status = _status([*program, f"--junitxml={report}"])
        if not report.exists():  # pytest was killed, or could not start
            return Result(name)
        found = [suite.attrib for suite in ElementTree.parse(report).getroot().iter("testsuite")]  # nosec B314
        tests, skipped, failed = (
            sum(int(each[key]) for each in found for key in keys)
            for keys in (("tests",), ("skipped",), ("failures", "errors"))
        )
        passed = tests - skipped - failed
        return Result(name, passed, failed, skipped, ok=status == 0 and failed == 0 and passed + skipped > 0)


def _status(program: Sequence[str | Path]) -> int:
    return subprocess.run(program, cwd=ROOT).returncode


def _pytest(says: str, folder: str, *options: str) -> Ring:
    return Ring(says, ((*PYTEST, *options, f"tests/{folder}"),), is_pytest=True)


PUSH = {
    "lint": Ring(
        "style, types, imports, security",
        (
            (BIN / "ruff", "check", "."),
            (BIN / "ruff", "format", "--check", "."),
            (BIN / "mypy",),
            (BIN / "lint-imports",),
            (BIN / "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *CODE),
        ),
    ),
    "unit": _pytest("no engine, no cluster", "unit", "-n", "2", "--dist", "loadfile"),
    "engine": _pytest("real engines against the oracle", "engine", *TWO_WORKERS),
    "e2e": _pytest("Ray, HTTP, real clients", "e2e"),
    "chaos": _pytest("clients that hang up, processes that die", "chaos"),
}
"""The rings of each push, by name."""

NIGHTLY = {
    "unit": _pytest(
        "more examples",
        "unit",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--hypothesis-profile=night",
        "-m",
        "nightly or hypothesis",
    ),
    "engine": _pytest("more models, methods and faults", "engine", *TWO_WORKERS, *NIGHT),
    "e2e": _pytest("more deployments", "e2e", *NIGHT),
    "chaos": _pytest("clusters of several nodes, longer runs", "chaos", *NIGHT),
    "peer": _pytest("vLLM's own tests, and clients that people use", "peer", *NIGHT),
    "soak": Ring(
        "parts break at random under load",
        ((sys.executable, "-m", "tests.soak", "--minutes", "30"), (sys.executable, "-m", "tests.soak.engines")),
    ),
    "fuzz": Ring("random bytes and requests", ((sys.executable, "-m", "tests.fuzz.nightly"),)),
}
"""What a night adds, by name."""


def run(names: Sequence[str], rings: Mapping[str, Ring], print_line: Callable[[str], None] = print) -> int:
    """The exit status. The rings that an interrupt (Ctrl-C) left out count as failed."""
    results = {name: Result(name) for name in names}
    try:
        for name in names:
            results[name] = rings[name].run(name)
    except KeyboardInterrupt:
        print_line("interrupted")
    print_line(table(list(results.values())))
    return 0 if all(result.ok for result in results.values()) else 1


def table(results: Sequence[Result]) -> str:
    """A line per ring, and their sum."""
    total = Result(
        "all",
        *(sum(getattr(result, name) for result in results) for name in ("passed", "failed", "skipped", "minutes")),
        ok=all(result.ok for result in results),
    )
    lines = [f"\n{'ring':8}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}"]
    for result in [*results, total]:
        counts = f"{result.passed:8}{result.failed:8}{result.skipped:9}{result.minutes:9.1f}"
        lines.append(f"{result.ring:8}{counts}{_remark(result, total)}")
    return "\n".join(lines)


def _remark(result: Result, total: Result) -> str:
    if result.ok or result.failed or result.ring == total.ring:
        return ""
    return "  ended with an error" if result.passed else "  ran no test"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--night", action="store_true", help="what a night adds, in place of what each push runs")
    parser.add_argument("ring", nargs="+", choices=sorted({*PUSH, *NIGHTLY}))
    asked = parser.parse_args()
    rings = NIGHTLY if asked.night else PUSH
    if unknown := [name for name in asked.ring if name not in rings]:
        parser.error(f"no such ring here: {', '.join(unknown)}")
    return run(asked.ring, rings)


if __name__ == "__main__":
    sys.exit(main())
