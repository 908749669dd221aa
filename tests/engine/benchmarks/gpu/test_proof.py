"""The proof on CPU at toy size: the steps that cost least, as they run on a GPU. All of them take several minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
ONLY = ("kernels", "imports", "speculator-demo")

pytestmark = pytest.mark.nightly


def _proof(file):
    command = [sys.executable, "-m", "benchmarks.gpu", "proof", "--device", "cpu", "--toy"]
    command += ["--only", ",".join(ONLY), "--json", str(file)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=500)


def test_the_steps_pass_and_are_not_repeated(tmp_path, device):
    if device == "cuda":
        pytest.skip("on a GPU the proof itself is run")
    file = tmp_path / "proof.json"
    done = _proof(file)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    result = json.loads(file.read_text())
    assert [result["steps"][name]["status"] for name in ONLY] == ["PASS"] * 3
    checks = {check["name"]: check for check in result["steps"]["speculator-demo"]["checks"]}
    assert {name for name, check in checks.items() if check["status"] == "SKIP"} == {
        "speculator: engine",
        "kernels against torch",
        "control: full graphs",
    }
    assert 0 < checks["importance"]["number"] < 5e-3
    assert checks["prefix cache"]["number"] > 0
    again = _proof(file)
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(ONLY)
    assert json.loads(file.read_text())["steps"] == result["steps"]
