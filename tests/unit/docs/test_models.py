"""docs/models.md lists the results of `skim models check`."""

import json
from pathlib import Path

from evals.architectures.table import markdown

ROOT = Path(__file__).parents[3]


def rows(file: str, heading: str) -> list[list[str]]:
    """The cells of the table under `heading`, without the head."""
    section = (ROOT / file).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def test_the_architectures_are_those_of_the_committed_results():
    results = json.loads((ROOT / "evals/architectures/results.json").read_text())
    table = [line.strip("|").split("|") for line in markdown(results).splitlines()[2:]]
    assert rows("docs/models.md", "Architectures") == [[cell.strip() for cell in line] for line in table]
