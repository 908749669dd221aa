"""What commands print."""

from rich.console import Console

console = Console(highlight=False)
progress = Console(stderr=True, highlight=False)
"""Standard error: what a command does, beside its result."""


def print_line(line: str) -> None:
    """Print a text as it is: no markup, no line breaks of rich's own."""
    console.print(line, markup=False, soft_wrap=True)
