"""`skim eval --explain`: which answers get a page, and what the page and the index say."""

from dataclasses import replace

import pytest

from evals.run.ask import Answer
from evals.run.failure_pages import index, worse_answers
from evals.run.run import run
from skim_common.errors import SkimError
from tests.unit.evals.run.test_run import SETTINGS

SHOWN = ("speculator", "look-ahead 0")


def answer(text):
    return Answer(text, 30, 1000)


def test_only_served_selections_that_are_worse_than_dense_get_a_page(made):
    [sample] = made("multi_key", style="plain")
    right, wrong = answer(sample.quiz.expected[0]), answer("nothing")
    cases = {("dense", 1.0): right, ("speculator", 0.2): wrong, ("speculator", 0.5): right, ("random", 0.2): wrong}
    [found] = worse_answers([sample], [cases], SHOWN)
    assert (found.case, found.answer, found.file) == (
        ("speculator", 0.2),
        wrong,
        "multi_key-1024-0-speculator-0.2.html",
    )
    assert list(worse_answers([sample], [{**cases, ("dense", 1.0): wrong}], SHOWN)) == []


def test_the_index_shows_answers_as_text(made):
    [sample] = made("multi_key", style="plain")
    cases = {("dense", 1.0): answer(sample.quiz.expected[0]), ("look-ahead 0", 0.2): answer("<b>\u202e & \ud800")}
    page = index(list(worse_answers([sample], [cases], SHOWN)))
    assert page.isascii()
    assert "&lt;b&gt;&#10214;U+202E&#10215; &amp; &#10214;U+D800&#10215;" in page
    assert '<a href="multi_key-1024-0-look-ahead-0-0.2.html">' in page
    assert "0 answers" in index([])


@pytest.mark.parametrize("other", [{"endpoint": "http://127.0.0.1:9", "speculator": None}, {"turns": 2}])
def test_pages_need_engines_in_this_process(tmp_path, other):
    with pytest.raises(SkimError, match="--explain needs engines in this process"):
        run(replace(SETTINGS, explain=tmp_path, **other))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SkimError, match=r"cannot write .*index.html"):
        run(replace(SETTINGS, explain=tmp_path / "file"))
