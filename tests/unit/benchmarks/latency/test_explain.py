"""`skim bench explain` on the mock engines: what it measures, its table and its plot."""

import numpy as np
import pytest

from benchmarks.latency import explain
from benchmarks.report import plots
from kv_transfer.layout import NO_LAYOUT
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from tests.unit.conftest import MODELS


@pytest.fixture(scope="module")
def result():
    folders = {"target": str(MODELS / "target"), "speculator": str(MODELS / "speculator")}
    return explain.run(explain.ExplainSettings(**folders, engine="mock", prompt_tokens=(600, 1200), rounds=2))


def test_a_row_per_length_with_the_share_of_the_first_token(result):
    columns, rows = explain.table(result)
    assert [row[0] for row in rows] == ["600", "1,200"]
    assert all(len(row) == len(columns) for row in rows)
    for row in result["rows"]:
        assert row["added_ms"]["median"] > 0
        assert row["share"]["lowest"] <= row["share"]["median"] <= row["share"]["highest"]
    assert "mock engines" in explain.describe(result)
    assert result["settings"]["target"] == "target"


def test_the_added_bytes_are_one_float_per_unit():
    """And up to 16 bytes that name and frame them. Negative control: without scores nothing is added."""
    importance = np.full(3200, 0.5, np.float32)
    scores = np.full(100, 0.5, np.float32)
    selection = Selection(KeptPrompt.dense(range(3200)), 1.0, importance, unit_scores=scores)
    assert 400 <= explain.added(selection, SelectionOptions(), NO_LAYOUT)["bytes"] <= 416
    without = Selection(KeptPrompt.dense(range(3200)), 1.0, importance)
    assert explain.added(without, SelectionOptions(), NO_LAYOUT)["bytes"] == 0


def test_plot(result, tmp_path):
    explain.plot(result, tmp_path / "explain.png")
    assert plots.source_of(tmp_path / "explain.png") == plots.digest(result)
