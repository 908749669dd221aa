"""The results page is what the committed JSON says."""

import json
from pathlib import Path

from benchmarks.report import ROOT, report


def test_the_committed_page_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == report(), "run make results"


def test_a_number_comes_from_its_file(tmp_path: Path) -> None:
    row = {"batch": 32, "q_top": 8, "median_ms": 1.234, "p90_ms": 2.0, "ratio_to_unary": 1.5, "ratio_to_tcp": 7.0}
    machine = {"usable_cores": 2, "machine": "x86_64"}
    result = {"rows": [row], "rounds": 10, "max_drafts": 4, "machine": machine, "command": "skim bench channel"}
    (tmp_path / "channel.json").write_text(json.dumps(result))
    assert "| 32 | 8 | 1.23 | 2.00 | 1.50 | 7.00 |" in report(tmp_path)
    assert "## Decoding" not in report(tmp_path)
