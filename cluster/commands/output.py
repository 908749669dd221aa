"""What commands print and write: plain lines, and a result as JSON."""

from pathlib import Path
from typing import Any

from rich.console import Console

console = Console(highlight=False)
progress = Console(stderr=True, highlight=False)
"""Standard error: what a command does, beside its result."""


def print_line(line: str) -> None:
    """Print a text as it is: no markup, no line breaks of rich's own."""
    console.print(line, markup=False, soft_wrap=True)


def write_result(result: Any, file: Path | None) -> None:
    """Write the result as JSON, if a file is named, and say so. Raises SkimError."""
    from cluster.json_file import write_json

    if file is not None:
        write_json(file, result)
        print_line(f"Wrote {file}")
