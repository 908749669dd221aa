"""What the page says about the error of its simulation is what the committed load step gives."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.report.planned import ROOT
from benchmarks.report.simulated import BIN_S, calibrated, compared, curves, error, load_step
from benchmarks.scaling.load_step import CALIBRATED, LENGTHS
from benchmarks.scaling.simulated_day.compare import SYSTEMS

PAGE = ROOT / "benchmarks" / "scaling" / "README.md"


@pytest.fixture(scope="module")
def found():
    return load_step()


@pytest.fixture(scope="module")
def errors(found):
    return compared(found)[2]


def test_the_page_has_the_errors_of_the_committed_run(found, errors):
    page = " ".join(PAGE.read_text().split())
    assert f"| first token | {errors['first']:.1%} |" in page
    assert f"| requests that wait | {errors['waiting']:.1%} |" in page
    measured, simulated, _ = compared(found)
    assert f"{measured.first.max():.0f} s measured, {simulated.first.max():.0f} s simulated" in page
    assert f"{len(found['requests'])} requests" in page
    assert max(errors.values()) < 0.15


def test_the_day_of_the_page_is_the_committed_one():
    page = " ".join(PAGE.read_text().split())
    day = json.loads((ROOT / "benchmarks" / "scaling" / "simulated-day.json").read_text())
    skim, requests, plain = (day["systems"][name] for name in SYSTEMS)
    hours = [sum(one["gpu_hours"].values()) for one in (skim, requests)]
    most = max(sum(one["most_replicas"].values()) for one in (skim, requests))
    assert f"{day['requests'] / 1e6:.1f} million requests, on up to {most} replicas of Skim" in page
    assert f"and {plain['most_replicas']['target']} of plain vLLM, take {day['seconds']:.0f} s on one core" in page
    assert f"With `work` {skim['within']:.1%} of the requests keep the SLOs, for {hours[0]:,.0f} GPU hours" in page
    assert f"with `requests` {requests['within']:.1%}, for {hours[1]:,.0f}" in page
    assert f"with plain vLLM on as many GPUs {plain['within']:.1%}" in page


def test_a_wrong_speed_is_seen(found, errors):
    """Negative control: a speculator of 1.3 times the speed, and one with a second replica."""
    system = calibrated(found["calibration"])
    machine = system.speculator.engine.machine
    fast = replace(machine, linear=1.3 * machine.linear, attention=1.3 * machine.attention)
    engine = replace(system.speculator.engine, machine=fast)
    for speculator in (replace(system.speculator, engine=engine), replace(system.speculator, replicas=2)):
        wrong = compared(found, replace(system, speculator=speculator))[2]
        assert all(wrong[name] > 2 * errors[name] for name in errors)


def test_the_speeds_come_from_other_prompts_than_the_step(found):
    assert {row["prompt_tokens"] for row in found["calibration"]} == set(CALIBRATED)
    assert {request["prompt_tokens"] for request in found["requests"]} == set(LENGTHS)
    assert not set(CALIBRATED) & set(LENGTHS)
    one = calibrated(found["calibration"][:3]).target.engine.machine.linear
    assert one != calibrated(found["calibration"]).target.engine.machine.linear


def test_curves_are_means_over_bins():
    at, first = np.array([0.0, 5.0, BIN_S + 1]), np.array([2.0, BIN_S, 4.0])
    found = curves(at, first)
    assert found.first.tolist() == [(2 + BIN_S) / 2, 4.0]
    assert found.waiting.tolist() == pytest.approx([(2 + 10) / BIN_S, (5 + 4) / BIN_S])
    assert error(np.array([1.0, 3.0]), np.array([1.5, 2.5])) == 0.25
    assert error(np.array([1.0, 3.0]), np.array([1.0])) == 0.75
