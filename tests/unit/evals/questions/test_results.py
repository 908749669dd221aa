"""The table of `skim eval --questions`: means of sets, paired differences, the worst set, groups."""

import pytest

from evals.questions.results import against_dense, describe, figure, outcomes, table, worst_set
from evals.results.bootstrap import of_clusters, of_mean


def sample(name, document, dense, default, prompt=3000, read=1000):
    scores = [["dense", 1.0, dense, prompt], ["default", 0.0, default, read]]
    return {"task": name, "document": document, "prompt": prompt, "scores": scores}


def result(*samples):
    settings = {"seed": 0, "target": "big", "speculator": "small", "endpoint": False}
    return {"settings": settings, "samples": list(samples), "selectors": {"default": "the default"}}


TWO_SETS = result(
    *(sample("notes", f"n{at // 2}", 1.0, float(at < 6)) for at in range(8)),
    sample("talks", "t0", 0.0, 1.0, 9000, 9000),
    sample("talks", "t1", 1.0, 1.0, 9000, 900),
)


def test_each_set_counts_once():
    found = figure(outcomes(TWO_SETS)["default", 0.0])
    assert (found.n, found.documents, found.worse, found.better) == (10, 6, 2, 1)
    assert found.score == pytest.approx((0.75 + 1.0) / 2)
    assert found.dense == pytest.approx((1.0 + 0.5) / 2)
    assert found.difference[0] == pytest.approx(found.score - found.dense)


def test_the_worst_set_is_named_where_the_mean_hides_it():
    name, worst = worst_set(TWO_SETS)
    assert (name, worst.difference[0]) == ("notes", -0.25)
    assert "worst set notes: 75, dense 100 (too few documents)" in against_dense(TWO_SETS)
    many = result(*(sample("notes", f"n{at}", 1.0, float(at > 1)) for at in range(8)))
    assert "score 75, dense 100 (difference -62 to +0)" in against_dense(many)
    same = result(*(sample("notes", f"n{at}", 1.0, 1.0) for at in range(8)))
    assert "score 100, dense 100 (no score differs)" in against_dense(same), "no interval of width 0"
    assert "Of 10 prompts with 2,000 tokens and more, its guard runs 1 dense" in describe(TWO_SETS)


def test_a_row_for_each_group_that_divides_the_questions():
    columns, rows = table(TWO_SETS)
    assert columns[:3] == ["questions", "n", "way"]
    assert [(row[0], row[1]) for row in rows] == [
        ("mean of sets", "10"),
        ("notes", "8"),
        ("talks", "2"),
        ("2,000 to 4,096 tokens", "8"),
        ("8,192 to 16,384 tokens", "2"),
        ("default keeps 0 to 0.2", "1"),
        ("default keeps 0.2 to 0.4", "8"),
        ("default runs dense", "1"),
    ]
    one_set = table(result(*TWO_SETS["samples"][:8]))[1]
    assert [row[0] for row in one_set] == ["notes"]


def test_questions_about_one_document_are_not_independent():
    alike = [[0.0] * 10, [1.0] * 10, [0.0] * 10, [1.0] * 10]
    mean, low, high = of_clusters({"notes": alike})
    _, low_of_each, high_of_each = of_mean([one for cluster in alike for one in cluster])
    assert mean == 0.5
    assert high - low > 1.5 * (high_of_each - low_of_each)
    assert of_clusters({"notes": [[value] for value in (0.0, 1.0, 1.0)]}) == of_mean([0.0, 1.0, 1.0])


def test_the_plot_is_drawn(tmp_path):
    from benchmarks.report import plots
    from evals.questions.results import plot

    plot(TWO_SETS, tmp_path / "answers.png")
    assert plots.source_of(tmp_path / "answers.png") == plots.digest(TWO_SETS)
