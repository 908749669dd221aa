"""What a step reports: checks with PASS, FAIL or SKIP and a number. Imports nothing but the standard library."""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"


@dataclass(frozen=True)
class Settings:
    """What a step runs with. device: cuda or cpu. toy: sizes for a test on CPU. Of the session: the folder of its
    results, that of real models, and the file of natural questions; empty if there is none.
    """

    device: str
    toy: bool
    folder: str = ""
    models: str = ""
    questions: str = ""


@dataclass(frozen=True)
class Check:
    """One result. status: PASS, FAIL or SKIP. number: what was measured, None for SKIP. says: one sentence."""

    name: str
    status: str
    number: float | None
    says: str

    def __str__(self) -> str:
        number = "" if self.number is None else f"{self.number:.4g}"
        return f"{self.status}  {self.name:<24} {number:>10}  {self.says}"


class Checks:
    """Writes the checks of one step into a file, one JSON line each, so that they outlive the step's process."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def judge(self, name: str, holds: bool, number: float, says: str) -> None:
        """PASS if `holds`, otherwise FAIL. says: what the number is, and what it must be."""
        self._add(Check(name, PASS if holds else FAIL, float(number), says))

    def measured(self, name: str, number: float, says: str) -> None:
        """A number that nothing is demanded of: PASS, because it could be measured."""
        self._add(Check(name, PASS, float(number), says))

    def skip(self, name: str, reason: str) -> None:
        """The check has no meaning here."""
        self._add(Check(name, SKIP, None, reason))

    def fail(self, name: str, reason: str) -> None:
        self._add(Check(name, FAIL, None, reason))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """An exception in this context is a FAIL named `name`, and the step goes on. The traceback is in the log."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.fail(name, sentence(error))

    def _add(self, check: Check) -> None:
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(check)) + "\n")


def read_checks(file: Path) -> list[Check]:
    """The checks written so far. A last line that is not complete is left out."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [Check(**json.loads(line)) for line in lines]


def sentence(error: BaseException) -> str:
    """Type and message of an exception in one line of at most 300 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."
