"""`skim demo`, which new users try first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_demo_answers_right_from_a_fraction_of_the_prompt(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    command = [Path(sys.executable).with_name("skim"), "demo", "--json", out]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["prompt_tokens"] >= 3500
    assert result["keep_rate"] == result["kept_tokens"] / result["prompt_tokens"] <= 0.3
    for mode in ("dense", "speculative"):
        assert result[mode]["answer"].strip(". ") == result["expected"]
        assert result[mode]["ttft_ms"] > 0
    assert {"speculate", "select", "transfer", "prefill"} <= result["speculative"]["parts_ms"].keys()
    for shown in (result["question"], result["expected"], "First token", "kept tokens are highlighted"):
        assert shown in done.stdout
    assert "Traceback" not in done.stderr
