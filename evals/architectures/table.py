"""The table of docs/models.md: architectures by what they can serve."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any


def markdown(results: Mapping[str, Any]) -> str:
    """The table of a file that `skim models check --json` wrote. Architectures with the same results share a line."""
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, found in results["architectures"].items():
        lines[_said(found["speculator"]), _said(found["target"])].append(name)
    rows = [
        f"| {', '.join(names)} | {speculator} | {target} |"
        for (speculator, target), names in sorted(lines.items(), key=lambda line: (-len(line[1]), line[1]))
    ]
    return "\n".join(["| architectures | speculator | target |", "|---|---|---|", *rows])


def _said(role: Mapping[str, Any]) -> str:
    return f"{role['verdict']}: {role['why']}" if role["why"] else str(role["verdict"])
