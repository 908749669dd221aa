"""The table of the published benchmarks' tasks: a row for each task, and the mean of a benchmark at each length."""

import json
from pathlib import Path

import pytest

from benchmarks.report import plots
from evals.questions.ways import BM25, DEFAULT
from evals.report.__main__ import SUBJECTS, details, subjects
from evals.results import published
from evals.selection.selectors import DENSE


def sample(task, length, index, dense, default, bm25, kept=0.25):
    read = int(kept * length)
    scores = [[DENSE, 1.0, dense, length], [DEFAULT, 0.0, default, read], [BM25, 0.0, bm25, read]]
    where = {"task": task, "family": task.split("/")[0], "length": length, "seed": f"{task} {length} {index}"}
    return {**where, "prompt": length, "scores": scores, "dense": ""}


@pytest.fixture
def result():
    samples = [
        sample(f"ruler/{task}", length, index, 1.0, of_default, 0.5)
        for length in (4096, 8192)
        for task, of_default in (("vt", 1.0), ("cwe", 0.5))
        for index in range(6)
    ]
    samples += [sample("mrcr/4_needles", 4096, index, 0.5, 0.25, 0.5, kept=1.0) for index in range(6)]
    return {
        "samples": samples,
        "settings": {"target": "t", "speculator": "s", "endpoint": False, "seed": 0, "max_tokens": 128},
        "selectors": {DEFAULT: "Skim without an option", BM25: "as many tokens"},
        "tasks": {"ruler/vt": "V.", "ruler/cwe": "C.", "mrcr/4_needles": "M."},
        "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None, "day": "2026-11-28"},
        "command": "skim eval",
    }


def test_a_row_for_each_task_and_the_mean_of_a_benchmark_by_length(result):
    columns, rows = published.table(result)
    assert columns == ["task", "n", "dense", "default", "BM25", "kept"]
    assert rows[0] == ["ruler/vt", "12", "100", "100 (no score differs)", "50 (-50 to -50)", "0.25"]
    assert rows[1] == ["ruler/cwe", "12", "100", "50 (-50 to -50)", "50 (-50 to -50)", "0.25"]
    assert [row[:3] for row in rows[2:4]] == [[f"ruler, {n} tokens", "12", "100"] for n in ("4,096", "8,192")]
    assert [row[3].split()[0] for row in rows[2:4]] == ["75", "75"]
    assert rows[4] == ["mrcr/4_needles", "6", "50", "25 (-25 to -25)", "50 (no score differs)", "1.00"]


def test_the_tasks_that_lose_are_named_the_worst_first(result):
    assert published.lost(result) == "ruler/cwe -50, mrcr/4_needles -25"
    assert "It runs 6 of 30 prompts dense. It loses points in: ruler/cwe -50" in published.describe(result)
    for one in result["samples"]:
        one["scores"][1][2] = one["scores"][0][2]
    assert published.lost(result) == "none of 30 prompts"


def test_a_result_makes_a_page_and_a_plot(result, tmp_path: Path):
    assert subjects(tmp_path) == []
    (tmp_path / "published.json").write_text(json.dumps(result))
    assert subjects(tmp_path) == ["Published benchmarks"]
    page = details("Published benchmarks", tmp_path)
    assert "| task | n | dense | default | BM25 | kept |" in page
    assert "- `ruler/vt`: V." in page
    assert published.lost(result) == "ruler/cwe -50, mrcr/4_needles -25"
    published.plot(result, tmp_path / "published.png")
    assert plots.source_of(tmp_path / "published.png") == plots.digest(result)
    assert "Published benchmarks" in SUBJECTS
