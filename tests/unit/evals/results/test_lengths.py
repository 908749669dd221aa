"""Quality by prompt length: the families that count, the paired difference and the table."""

import pytest

from evals.results import lengths
from evals.results.comparison import ALL


def sample(family, length, dense, kept, *, task="t"):
    scores = [["dense", 1.0, dense, 100], ["speculator", 0.2, kept, 20], ["auto + guard", 0.0, kept, 30]]
    return {"task": task, "family": family, "length": length, "seed": length, "prompt": 100, "scores": scores}


RESULT = {
    "samples": [
        sample("needles", 1000, 1.0, 1.0),
        sample("needles", 4000, 1.0, 0.0),
        sample("code", 1000, 0.5, 0.5),
        sample("code", 1000, 0.5, 1.0),
        sample("counting", 1000, 0.0, 1.0),
    ],
    "timings": [],
    "settings": {"seed": 0, "target": "big", "speculator": "small", "look_ahead": 8},
    "selectors": {"speculator": "as in serving", "auto + guard": "the default"},
    "tasks": {"t": "a task"},
}


def test_families_that_dense_cannot_do_do_not_count():
    assert [found.able for found in lengths.by_length(RESULT).values()] == [
        ["needles", "code"],
        ["needles"],
        ["needles", "code"],
    ]
    assert "(needles, code)" in lengths.describe(RESULT)


def test_each_family_counts_once():
    found = lengths.by_length(RESULT)[1000].figure(ALL, ("speculator", 0.2))
    assert (found.n, found.score, found.dense, found.kept) == (3, 0.875, 0.75, pytest.approx(0.2))
    mean, low, high = found.difference
    assert mean == 0.125
    assert low <= mean <= high


def test_a_family_without_a_prompt_of_a_length_is_left_out():
    found = lengths.by_length(RESULT)[4000].figure(ALL, ("auto + guard", 0.0))
    assert (found.n, found.score, found.difference[0]) == (1, 0.0, -1.0)


def test_the_table_has_all_lengths_last():
    columns, rows = lengths.table(RESULT)
    assert columns == ["tokens", "n", "selector", "kept", "dense", "score"]
    assert [row[:3] for row in rows] == [
        [length, n, name]
        for length, n in (("1,000", "3"), ("4,000", "1"), ("all", "4"))
        for name in ("speculator, keep 0.2", "auto + guard")
    ]
    assert lengths.against_dense(RESULT, ("auto + guard", 0.0)).startswith("score 62, dense 75 (difference ")


def timing(selector, prompt, read, select, prefill):
    times = {"select_s": select, "prefill_s": prefill}
    return {"selector": selector, "keep_rate": 0.0, **times, "read": read, "prompt": prompt}


def timed_result():
    """Two lengths: the default takes half of dense's time at 1,000 tokens, and a quarter at 4,000."""
    default = {"auto + guard": "the default"}
    samples = [sample("needles", length, 1.0, 1.0) | {"prompt": length} for length in (1000, 4000)]
    for made in samples:
        made["scores"] = [["dense", 1.0, 1.0, made["prompt"]], ["auto + guard", 0.0, 1.0, made["prompt"] // 5]]
    timings = [timing("dense", 1000, 1000, 0.0, 1.0), timing("auto + guard", 1000, 200, 0.3, 0.2)]
    timings += [timing("dense", 4000, 4000, 0.0, 16.0), timing("auto + guard", 4000, 800, 1.0, 3.0)]
    return RESULT | {"samples": samples, "selectors": default, "timings": timings}


def test_times_are_those_of_a_length():
    columns, rows = lengths.table(timed_result())
    assert columns[-1] == "first token / dense"
    assert [(row[0], row[-1]) for row in rows] == [("1,000", "0.50"), ("4,000", "0.25"), ("all", "")]
    assert "lines through 4 cases" in lengths.describe(timed_result())
    assert "Times were not measured" in lengths.describe(RESULT)


@pytest.mark.parametrize("result", [RESULT, timed_result()], ids=["untimed", "timed"])
def test_the_plot_is_drawn(result, tmp_path):
    lengths.plot(result, tmp_path / "lengths.png")
    assert (tmp_path / "lengths.png").stat().st_size > 10_000
