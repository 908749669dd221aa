"""What docs/gpu.md says of the run on an H200 is what the committed result says."""

import json
import re

import pytest

from benchmarks.gpu.steps.step import ROOT

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
        ("target-128", "bfloat16: tokens", "as `target-64`: {} of 64 tokens"),
        ("speculator-demo", "full: greedy drafts", "of the oracle, {} of 12 drafts"),
        ("last-position", "draft model: last position", "at the last position: {} of 64 tokens"),
        ("target-64", "control: hook off", "without the hook {} of 64 tokens"),
    ],
)
def test_a_number_of_the_page_is_that_of_the_result(step, name, says):
    assert says.format(int(check(step, name)["number"])) in PAGE


def test_the_bounds_of_the_page_hold():
    assert check("speculator-wide", "importance")["number"] < 0.0007
    assert check("speculator-wide", "kernels against torch")["number"] < 1e-8
    assert check("speculator-demo", "importance")["number"] < 0.0012
    assert f"(p = {check('sampling', 'distribution')['number']:.2f})" in PAGE
    assert f"(p = {check('sampling', 'control: wrong q')['number']:.0e}".replace("e-0", "e-") + ")" in PAGE
    assert check("target-64", "float32: logprobs")["number"] < 2e-5
    modes = re.findall(r"(?:NONE|PIECEWISE|FULL) (\d+)", check("target-64", "bfloat16: full graphs")["says"])
    assert sum(map(int, modes)) == 136


def test_the_page_names_what_passed_and_what_did_not_run():
    names = {status: [name for name, step in STEPS.items() if step["status"] == status] for status in ("PASS", "TODO")}
    assert len(STEPS) == sum(map(len, names.values())), "none failed"
    assert all(f"`{name}`" in PAGE for name in names["PASS"])
    names["TODO"].remove("ttft")  # it ran by its own command
    assert "| " + ", ".join(f"`{name}`" for name in names["TODO"]) + " | not run" in PAGE
