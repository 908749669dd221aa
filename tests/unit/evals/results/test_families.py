"""Figures by family: paired differences, times, what the advice says of them, and the page."""

import json

import pytest

from benchmarks.report import plots
from evals.results import families as family_results
from evals.results.advice import advise
from evals.results.comparison import ALL, Comparison
from evals.run.run import EvalSettings, run
from tests.unit.evals.conftest import MODELS

SPECULATOR = ("speculator", 0.2)


def sample(family, dense, speculator, bm25):
    scores = [["dense", 1.0, dense, 1000], ["speculator", 0.2, speculator, 250], ["bm25", 0.2, bm25, 250]]
    where = {"task": family, "family": family, "length": 1000, "seed": "0", "prompt": 1000, "dense": "text"}
    return {**where, "scores": scores}


def timing(selector, select_s, read):
    rate = 1.0 if selector == "dense" else 0.2
    found = {"selector": selector, "keep_rate": rate, "select_s": select_s, "prefill_s": read / 100, "read": read}
    return found | {"prompt": 1000}


@pytest.fixture
def result():
    """Skim finds needles, loses counts and beats BM25 where no word is shared; dense cannot juggle."""
    samples = [sample("needles", 1, 1, 1) for _ in range(20)]
    samples += [sample("counting", 1, i % 2, i % 2) for i in range(20)]
    samples += [sample("no shared words", 1, 1, 0) for _ in range(20)]
    samples += [sample("juggling", 0, 0, 1) for _ in range(20)]
    timings = [timing("dense", 0.0, 1000), timing("speculator", 3.0, 250), timing("bm25", 0.01, 250)]
    settings = {"lengths": [1000], "seed": 0, "target": "big", "speculator": "small", "look_ahead": 8}
    selectors = {"speculator": "as in serving", "bm25": "lexical"}
    tasks = {"needles": "Find it. Metric: found."}
    return {"settings": settings, "samples": samples, "timings": timings, "selectors": selectors, "tasks": tasks}


def test_differences_are_paired_and_families_count_once(result):
    comparison = Comparison(result)
    assert comparison.able == ["needles", "counting", "no shared words"]
    figure = comparison.figure("counting", SPECULATOR)
    assert (figure.n, figure.score, figure.dense, figure.kept) == (20, 0.5, 1.0, 0.25)
    mean, low, high = figure.difference
    assert low < mean == -0.5 < high < 0
    assert comparison.figure("needles", SPECULATOR).difference == (0.0, 0.0, 0.0)
    assert comparison.figure(ALL, SPECULATOR).score == pytest.approx((1 + 0.5 + 1) / 3)
    assert comparison.against("no shared words", SPECULATOR, ("bm25", 0.2)) == (1.0, 1.0, 1.0)


def test_times_are_shares_of_the_dense_time(result):
    comparison = Comparison(result)
    assert comparison.figure(ALL, SPECULATOR).time == pytest.approx(5.5 / 10)
    assert comparison.figure(ALL, ("bm25", 0.2)).time == pytest.approx(2.51 / 10)
    assert comparison.best_within(ALL, "speculator", 0.5) is None
    assert comparison.best_within(ALL, "bm25", 0.5) == pytest.approx(1.5 / 3)


def test_the_advice_follows_the_figures(result):
    advice = advise(Comparison(result))
    assert "16.7 points lower than dense" in advice
    assert "loses at most 5 points in: needles, no shared words." in advice
    assert "loses more in: counting (50) (points)" in advice
    assert "is better than BM25, with an interval above 0, in: no shared words." in advice
    assert "Dense itself scores below 0.5 in: juggling." in advice


def test_the_advice_turns_with_the_figures(result):
    """Negative control: with the selectors' scores exchanged, BM25 is the better one."""
    for found in result["samples"]:
        _, speculator, bm25 = found["scores"]
        speculator[2], bm25[2] = bm25[2], speculator[2]
    assert "BM25 is better, with an interval above 0, in: no shared words." in advise(Comparison(result))


def test_the_advice_is_about_the_guard_where_it_was_measured(result):
    """Its selection is worse here than the speculator's; BM25 stands beside the speculator's all the same."""
    for found in result["samples"]:
        found["scores"].append(["auto + guard", 0.0, 0.0, 500])
    result["selectors"]["auto + guard"] = "kept by rule"
    result["timings"].append(timing("auto + guard", 3.0, 500))
    advice = advise(Comparison(result))
    assert "**When to use Skim.** *auto + guard* is 100.0 points lower than dense" in advice
    assert "keeps 0.50 of the prompt" in advice
    assert "At keep rate 0.2, *speculator* scores 83 after 0.55 of dense's time, and BM25 alone (bm25) 50" in advice


def test_the_table_and_the_description(result, tmp_path):
    columns, rows = family_results.table(result)
    assert columns == ["family", "n", "keep rate", "kept", "dense", "speculator", "bm25"]
    assert [row[0] for row in rows] == [ALL, "needles", "counting", "no shared words", "juggling"]
    assert rows[1] == ["needles", "20", "0.2", "0.25", "100", "100 (+0 to +0)", "100 (+0 to +0)"]
    assert "| bm25 | - | 50 | 50 | 50 |" in family_results.describe(result)
    family_results.plot(result, tmp_path / "families.png")
    assert plots.source_of(tmp_path / "families.png") == plots.digest(result)


def test_the_timed_samples_are_spread_over_all():
    settings = EvalSettings(
        str(MODELS / "target"), str(MODELS / "speculator"), keep_rates=(0.2,), tasks=("counting", "multi_key"),
        lengths=(1024,), samples=4, selectors=("speculator",), engine="mock", max_tokens=6, timed=2,
    )  # fmt: skip
    result = run(settings)
    assert [timing["selector"] for timing in result["timings"]] == ["dense", "speculator"] * 2
    assert len({timing["prompt"] for timing in result["timings"]}) == 2


def test_a_timed_run_that_goes_on_repeats_nothing(tmp_path):
    settings = EvalSettings(
        str(MODELS / "target"), str(MODELS / "speculator"), keep_rates=(0.2,), tasks=("counting", "multi_key"),
        lengths=(1024,), samples=1, selectors=("speculator", "bm25", "oracle"), engine="mock", max_tokens=6, timed=1,
        resume=tmp_path / "run.jsonl",
    )  # fmt: skip
    first = run(settings)
    assert {timing["selector"] for timing in first["timings"]} == {"dense", "speculator", "bm25", "oracle"}
    written = (tmp_path / "run.jsonl").read_text()
    again = run(settings)
    assert (tmp_path / "run.jsonl").read_text() == written
    assert (again["samples"], again["timings"]) == (first["samples"], first["timings"])
    assert str(tmp_path) not in json.dumps(first)
    assert family_results.table(again)[1][-1][:3] == ["needles", "1", "0.2"]
