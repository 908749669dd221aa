"""`skim bench evidence` with a mock speculator: its counts, its journal and its errors."""

import json
from dataclasses import replace

import pytest

from evals.run import evidence_kept, speculator_alone
from evals.run.evidence_kept import EvidenceSettings, describe, run, table
from evals.tasks.registry import FAMILIES
from skim_common.errors import SkimError
from tests.unit.evals.conftest import MODELS

SETTINGS = EvidenceSettings(
    str(MODELS / "speculator"),
    tasks=("single_needle", "multi_key"),
    ways=("look-ahead, chunks", "lexical"),
    keep_rates=(0.1, 0.4),
    prompt_tokens=900,
    prompts=6,
    engine="mock",
)


@pytest.fixture(scope="module")
def result():
    return run(SETTINGS)


def test_shared_words_are_found_more_often_than_by_random_scores(result):
    """The mock's scores are random."""
    kept = {(row["task"], row["way"], row["keep_rate"]): row["kept"] for row in result["rows"]}
    assert len(kept) == 8
    assert kept["single_needle", "lexical", 0.4] == 6
    assert kept["single_needle", "lexical", 0.1] > kept["single_needle", "look-ahead, chunks", 0.1]
    assert all(0 <= row["low"] < row["high"] <= 1 for row in result["rows"])


def test_ways_of_words_need_no_model_and_auto_reads_what_shares_no_word():
    settings = replace(SETTINGS, tasks=("association", "single_needle"), ways=("read by auto",), engine="none")
    read = {row["task"]: row["kept"] for row in run(settings)["rows"]}
    assert read["association"] >= 5 > read["single_needle"]


def test_the_table_has_a_row_for_each_task_and_way(result):
    columns, rows = table(result)
    assert columns == ["task", "way", "keep 0.1", "keep 0.4"]
    assert [row[:2] for row in rows] == [
        [task, way] for task in ("single_needle", "multi_key") for way in ("look-ahead, chunks", "lexical")
    ]
    assert rows[1][3].startswith("1.000 (")
    assert "6 prompts per task" in describe(result)


def test_the_tasks_of_a_published_benchmark_have_rows_together_and_alone():
    tasks = ("babilong/qa4", "babilong/qa5", "scbench/turn_4", "single_needle", "multi_key")
    settings = replace(SETTINGS, tasks=tasks, ways=("lexical",), prompt_tokens=3000, prompts=1)
    rows = [row[0] for row in table(run(settings))[1]]
    assert rows == ["babilong", "scbench", "needles", *tasks[:3]]


def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch, result):
    settings = replace(SETTINGS, journal=tmp_path / "run.jsonl")
    run(replace(settings, prompts=2))
    scored = []

    async def counted(engine, tokenizer, samples, *rest, real=evidence_kept.chunk_recall):
        scored.extend(samples)
        return await real(engine, tokenizer, samples, *rest)

    monkeypatch.setattr(evidence_kept, "chunk_recall", counted)
    assert run(settings)["rows"] == result["rows"]
    assert len(scored) == 8
    assert run(settings)["rows"] == result["rows"]
    assert len(scored) == 8


@pytest.mark.parametrize("change", [{"keep_rates": (0.2,)}, {"ways": ("lexical",)}, {"options": {"latency_ms": 1}}])
def test_the_journal_of_another_run_is_refused(tmp_path, change):
    settings = replace(SETTINGS, journal=tmp_path / "run.jsonl", prompts=1, tasks=("single_needle",))
    run(settings)
    with pytest.raises(SkimError, match="has results of another run"):
        run(replace(settings, **change))


def test_the_length_and_the_seed_of_the_prompts_are_not_mixed_up(tmp_path):
    """They are part of each sample's seed, so one file may hold several."""
    settings = replace(SETTINGS, journal=tmp_path / "run.jsonl", prompts=1, tasks=("single_needle",))
    run(settings)
    run(replace(settings, seed=1))
    run(replace(settings, prompt_tokens=1000))
    samples = [json.loads(line)["item"] for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    assert len(set(samples)) == 3


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"ways": ("guessing",)}, "unknown way of scoring 'guessing'"),
        ({"tasks": ("nothing",)}, "unknown task 'nothing'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_engine_starts(monkeypatch, change, wrong):
    monkeypatch.setattr(speculator_alone, "create_engine", None)
    with pytest.raises(SkimError, match=wrong):
        run(replace(SETTINGS, prompts=1, **change))


def test_the_tasks_of_a_family_are_shown_together(result, tmp_path):
    """The same two tasks under six names."""
    names = [*FAMILIES["order"], *FAMILIES["code"]]
    renamed = dict(zip(result["tasks"], (names[:3], names[3:]), strict=True))
    rows = [row | {"task": name} for row in result["rows"] for name in renamed[row["task"]]]
    many = result | {"tasks": dict.fromkeys(names, "a task"), "rows": rows}
    columns, shown = table(many)
    assert [row[:2] for row in shown] == [[family, way] for family in ("order", "code") for way in SETTINGS.ways]
    kept = sum(row["kept"] for row in rows if (row["way"], row["keep_rate"], row["task"]) == ("lexical", 0.4, names[0]))
    assert shown[1][columns.index("keep 0.4")].startswith(f"{kept / 6:.3f} (")
    evidence_kept.plot(many, tmp_path / "plot.png")
