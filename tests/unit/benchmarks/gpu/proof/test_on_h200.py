"""What docs/gpu.md says of the run on an H200 is what the committed result says."""

import json
import re

import pytest

from benchmarks.gpu.proof.plan import ROOT

STEPS = json.loads((ROOT / "benchmarks" / "gpu" / "h200-proof.json").read_text())["steps"]
PAGE = " ".join((ROOT / "docs" / "gpu.md").read_text().split())


def check(step, name):
    (found,) = (found for found in STEPS[step]["checks"] if found["name"] == name)
    return found


@pytest.mark.parametrize(
    ("step", "name", "says"),
    [
        ("kernels", "cases", "{} of 74 cases of the scoring kernels agree with torch"),
        ("speculator-wide", "full: greedy drafts", "{} of 12 drafts are the oracle's"),
        ("target-64", "bfloat16: tokens", "bfloat16 {} of 64 tokens"),
        ("target-64", "five at once", "five requests at once {} of 64"),
        ("target-64", "bfloat16: last position", "last position {} of 64"),
        ("target-64", "float32: tokens", "float32 {} of 64"),
        ("target-64", "bfloat16: full graphs", "{} of 136 steps were FULL graphs"),
        ("target-64", "control: hook off", "without the hook {} of 64 tokens"),
    ],
)
def test_a_number_of_the_page_is_that_of_the_result(step, name, says):
    assert says.format(int(check(step, name)["number"])) in PAGE


def test_the_bounds_of_the_page_hold():
    assert check("speculator-wide", "importance")["number"] < 0.0007
    assert check("speculator-wide", "kernels against torch")["number"] < 1e-8
    assert check("target-64", "float32: logprobs")["number"] < 2e-5
    modes = re.findall(r"(?:NONE|PIECEWISE|FULL) (\d+)", check("target-64", "bfloat16: full graphs")["says"])
    assert sum(map(int, modes)) == 136


def test_the_page_names_what_failed_and_what_did_not_run():
    failed = [name for name, step in STEPS.items() if step["status"] == "FAIL"]
    assert failed == ["sampling"]
    assert "| `sampling` | **no result**" in PAGE
    passed = [name for name, step in STEPS.items() if step["status"] == "PASS"]
    assert passed == ["imports", "kernels", "speculator-wide", "drafts", "target-64"]
    assert all(f"`{name}`" in PAGE for name in passed)
