"""What docs/plan.md says about the errors of the plan is what the committed measurements give."""

import statistics
from dataclasses import replace

import pytest

from benchmarks.report import planned
from benchmarks.report.planned import checked, cpu, gpu, summary
from cluster import plan


@pytest.fixture(scope="module")
def rows():
    return checked()


def median(rows) -> float:
    return statistics.median(abs(row.error) for row in rows)


def test_the_page_has_the_same_figures(rows):
    page = " ".join((planned.ROOT / "docs" / "plan.md").read_text().split())
    for kind, found in rows.items():
        assert f"| {kind} | {len(found)} | {median(found):.1%}" in page
        worst = summary(found).split("worst ")[1]
        assert worst.rsplit(" (", 1)[0] in page
    everything = [row for found in rows.values() for row in found]
    assert f"{len(everything)} predictions, the median error is {median(everything):.1%}" in page


def test_the_gpus_efficiencies_are_those_that_were_measured():
    h200 = plan.GPUS["h200"]
    assert plan.LINEAR * gpu().linear / h200.linear == pytest.approx(plan.LINEAR, abs=0.006)
    assert plan.ATTENTION * gpu().attention / h200.attention == pytest.approx(plan.ATTENTION, abs=0.006)
    assert gpu().token_s == pytest.approx(plan.TOKEN_S, abs=1e-7)


def test_no_row_is_both_calibration_and_prediction(rows):
    names = [row.name for found in rows.values() for row in found]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.startswith("turns: dense")]
    assert not [
        name
        for name in names
        if name.startswith(("gpu-ttft: dense", "gpu-ttft: engines alone, 32768 tokens, keep 0.1"))
    ]


def test_a_wrong_way_to_read_is_seen(rows, monkeypatch):
    """Negative control: with the speculator's read as a whole, the engines alone are predicted too slow."""
    real = planned.cpu_engine
    monkeypatch.setattr(planned, "cpu_engine", lambda model, machine, **reading: real(model, machine))
    name = "ttft: engines alone, 8192 tokens, keep 0.1"
    (right,), (wrong,) = ([row for row in found if row.name == name] for found in (rows["ttft"], planned.ttft_rows()))
    assert abs(right.error) < 0.1
    assert wrong.error > 0.1


def test_a_wrong_machine_is_seen(rows, monkeypatch):
    """Negative control: half of the CPU's speed, and a GPU whose attention costs nothing."""
    slow = replace(cpu(), linear=cpu().linear / 2, attention=cpu().attention / 2)
    monkeypatch.setattr(planned, "cpu", lambda: slow)
    assert median(planned.turns_rows()) > 3 * median(rows["turns"])
    real = planned._operations
    monkeypatch.setattr(planned, "_operations", lambda model, read: real(model, read) / 2)
    assert median(planned.ttft_rows()) > 3 * median(rows["ttft"])
    blind = replace(gpu(), attention=1e30)
    monkeypatch.setattr(planned, "gpu", lambda: blind)
    assert median(planned.gpu_rows()) > 5 * median(rows["gpu-ttft"])
