"""The README's table of models is a short form of that in docs/models.md, which also lists the known pairs."""

from pathlib import Path

from cluster.pairs.known import KNOWN

ROOT = Path(__file__).parents[3]


def rows(file: str, heading: str) -> list[list[str]]:
    """The cells of the table under `heading`, without the head."""
    section = (ROOT / file).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def kinds(file: str, heading: str) -> dict[str, list[str]]:
    """The columns speculator and target of the table of models, by kind of model."""
    return {kind: cells for kind, *cells in rows(file, heading)}


def in_short(cell: str) -> str:
    """`yes` or `no`: what a cell of docs/models.md begins with."""
    return {"yes": "yes", "refused": "no"}[cell.replace(",", ";").split(";")[0]]


def test_the_readme_says_the_same_in_short():
    full = kinds("docs/models.md", "Kinds of models")
    short = kinds("README.md", "Models")
    assert len(short) >= 6
    assert short == {kind: [in_short(cell) for cell in full[kind]] for kind in short}


def test_the_known_pairs_are_those_of_the_command():
    assert {pair.state for pair in KNOWN} == {"tested", "by reading", "refused"}
    assert rows("docs/models.md", "Known pairs") == [list(pair) for pair in KNOWN]
