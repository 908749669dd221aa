"""The README's table of models is a short form of the one in docs/models.md."""

from pathlib import Path

ROOT = Path(__file__).parents[3]


def rows(file: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table under `heading` by the first cell of their row, without the head."""
    section = (ROOT / file).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {first.strip(): [cell.strip() for cell in cells] for first, *cells in lines[2:]}


def in_short(cell: str) -> str:
    """`yes` or `no`: what a cell of docs/models.md begins with."""
    return {"yes": "yes", "refused": "no"}[cell.replace(",", ";").split(";")[0]]


def test_the_readme_says_the_same_in_short():
    full = rows("docs/models.md", "Kinds of models")
    short = rows("README.md", "Models")
    assert len(short) >= 6
    assert short == {kind: [in_short(cell) for cell in full[kind]] for kind in short}
