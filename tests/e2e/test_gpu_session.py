"""The whole GPU session in small, on CPU: every step runs, and what it measured says that it is no GPU's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.session.plan import STEPS

ROOT = Path(__file__).parents[2]
RESULTS = ("served", "first-token-8b", "first-token-32b", "load")

pytestmark = pytest.mark.nightly


def _session(folder):
    command = [sys.executable, "-m", "benchmarks.gpu", "session", "--device", "cpu", "--toy", "--minutes", "60"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, "--folder", str(folder)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=3600
    )


@pytest.mark.timeout(3700)
def test_every_step_runs_and_none_is_repeated(tmp_path):
    done = _session(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    steps = json.loads((tmp_path / "session.json").read_text())["steps"]
    assert {name: step["status"] for name, step in steps.items()} == {
        step.name: "SKIP" if step.name == "answers" else "PASS" for step in STEPS
    }
    results = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in RESULTS}
    assert all(result["complete"] and result["machine"]["gpu"] is None for result in results.values())
    assert "No number says anything about a GPU" in (tmp_path / "summary.md").read_text()
    answers = [row for row in results["served"]["rows"] if row["mode"] == "stock"]
    assert all(row["right"] for row in answers), "the demo pair answers its own documents"
    assert {row["system"] for row in results["load"]["rows"]} == {"skim", "stock 256"}
    again = _session(tmp_path)
    assert again.stdout.count("done before") == len(STEPS)
    assert json.loads((tmp_path / "session.json").read_text())["steps"] == steps
