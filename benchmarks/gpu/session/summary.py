"""What a person reads of a session in a minute, and the files that leave the machine."""

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report.machine import in_words

OUT = "OUT"
"""Environment variable: the folder whose files leave the machine. It may be emptied before the next run."""
PACKED = "session.tar.gz"


def summary(journal: Mapping[str, Any]) -> str:
    """Markdown: the machine, a line for each step, and its numbers. journal: the runner's file."""
    lines = [f"# Session on {in_words(journal['machine'])}", ""]
    if journal["settings"]["device"] == "cpu":
        lines += ["**Run on CPU, to try the steps. No number says anything about a GPU.**", ""]
    for name, step in journal["steps"].items():
        lines.append(f"- **{step['status']}** `{name}`: {step['shows']}, {step['seconds']:.0f} s")
        for check in step["checks"]:
            number = "" if check["number"] is None else f" {check['number']:.4g}"
            lines.append(f"  - {check['status']} {check['name']}:{number} {check['says']}")
    return "\n".join([*lines, ""])


def hand_out(folder: Path, journal: Mapping[str, Any]) -> None:
    """Write `summary.md` into the session's folder, and copies into $OUT, if that is set: the summary, the journal, and
    the whole folder as an archive, with which another machine can go on.
    """
    (folder / "summary.md").write_text(summary(journal), encoding="utf-8")
    if not (out := os.environ.get(OUT)):
        return
    for name in ("summary.md", "session.json"):
        shutil.copy(folder / name, out)
    making = Path(out) / f"{PACKED}.new"
    with tarfile.open(making, "w:gz") as archive:
        archive.add(folder, arcname=".")
    making.replace(Path(out) / PACKED)
