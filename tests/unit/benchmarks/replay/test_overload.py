"""The simulation of overload: admission keeps the goodput, and without it nearly nothing is answered in time."""

import pytest

from benchmarks.replay import overload
from benchmarks.replay.overload import OverloadSettings

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def result():
    """Two rates in a few virtual seconds, with short prompts."""
    settings = OverloadSettings(
        prompt_tokens=3000, spread=0.2, answer_tokens=4, deadline_s=2.0, seconds=6.0, replicas=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overload, "LOADS", (1.0, 3.0))
        patch.setattr(overload, "WARM_UP_S", 4.0)
        return overload.run(settings)


def goodput(result, system, load):
    return next(point["goodput"] for point in result["points"][system] if point["load"] == load)


def test_admission_keeps_the_goodput_under_overload(result):
    assert goodput(result, "admission", 3.0) > 0.7 * goodput(result, "admission", 1.0)
    assert [point["refused"] > 0 for point in result["points"]["admission"]][-1]


def test_without_admission_the_goodput_falls(result):
    """Negative control."""
    assert goodput(result, "none", 3.0) < 0.5 * goodput(result, "admission", 3.0)
    assert all(point["refused"] == 0 for point in result["points"]["none"])


def test_every_request_is_counted(result):
    for points in result["points"].values():
        for point in points:
            assert point["met"] + point["refused"] + point["missed"] > 0
    columns, rows = overload.table(result)
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(columns)}
    assert "virtual time" in overload.describe(result)
