"""`skim eval --explain`: which answers get a page, and what the page and the index say."""

from dataclasses import replace

import pytest

from evals.run.ask import Answer
from evals.run.failure_pages import INDEX, index, worse_answers
from evals.run.run import run
from skim_common.errors import SkimError
from tests.unit.cluster.explain.test_page import data_of
from tests.unit.evals.run.test_run import SETTINGS

ON_DEMO = replace(SETTINGS, engine="transformers", tasks=("multi_key",), samples=2, max_tokens=6)


def answer(text):
    return Answer(text, 30, 1000)


def test_only_served_selections_that_are_worse_than_dense_get_a_page(made):
    [sample] = made("multi_key", style="plain")
    right, wrong = answer(sample.quiz.expected[0]), answer("nothing")
    cases = {("dense", 1.0): right, ("speculator", 0.2): wrong, ("speculator", 0.5): right, ("random", 0.2): wrong}
    [found] = worse_answers([sample], [cases])
    assert (found.case, found.answer, found.file) == (
        ("speculator", 0.2),
        wrong,
        "multi_key-1024-0-speculator-0.2.html",
    )
    assert list(worse_answers([sample], [{**cases, ("dense", 1.0): wrong}])) == []


def test_the_index_shows_answers_as_text(made):
    [sample] = made("multi_key", style="plain")
    cases = {("dense", 1.0): answer(sample.quiz.expected[0]), ("look-ahead 0", 0.2): answer("<b>\u202e & \ud800")}
    page = index(list(worse_answers([sample], [cases])))
    assert page.isascii()
    assert "&lt;b&gt;&#10214;U+202E&#10215; &amp; &#10214;U+D800&#10215;" in page
    assert '<a href="multi_key-1024-0-look-ahead-0-0.2.html">' in page
    assert "0 answers" in index([])


def test_pages_show_what_was_kept_and_the_evidence_that_was_not(tmp_path):
    """At this keep rate only the question is kept."""
    result = run(replace(ON_DEMO, keep_rates=(0.03,), selectors=("speculator", "random"), explain=tmp_path / "pages"))
    scores = {name: score for name, _, score, _ in result["samples"][0]["scores"]}
    assert (scores["dense"], scores["speculator"]) == (1, 0)
    files = sorted(file.name for file in (tmp_path / "pages").iterdir())
    assert files == [INDEX, "multi_key-1024-0-speculator-0.03.html", "multi_key-1024-1-speculator-0.03.html"]
    data = data_of((tmp_path / "pages" / files[1]).read_text())
    notes = dict(data["notes"])
    assert list(notes) == ["Question", "Expected", "Answer", "Dense answer", "Evidence"]
    assert notes["Expected"] in notes["Dense answer"]
    assert ": 0 of " in notes["Evidence"]
    assert notes["Question"] in "".join(piece[4] for piece in data["pieces"])
    assert all(name in (tmp_path / "pages" / INDEX).read_text() for name in files[1:])
    assert "explain" not in result["settings"]


@pytest.mark.parametrize("other", [{"endpoint": "http://127.0.0.1:9", "speculator": None}, {"turns": 2}])
def test_pages_need_engines_in_this_process(tmp_path, other):
    with pytest.raises(SkimError, match="--explain needs engines in this process"):
        run(replace(SETTINGS, explain=tmp_path, **other))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SkimError, match=r"cannot write .*index.html"):
        run(replace(SETTINGS, explain=tmp_path / "file"))
