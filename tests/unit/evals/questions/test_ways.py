"""`skim eval --questions` with engines in this process: a whole run, whose target answers from what it sees."""

import json
import re
from dataclasses import replace

import pytest

from evals.questions.results import figure, outcomes
from evals.questions.ways import BM25, DEFAULT, NO_DOCUMENT
from evals.run import ask
from evals.run.ask import InProcess
from evals.run.failure_pages import INDEX
from evals.run.run import EvalSettings, run
from skim_common.errors import SkimError
from skim_common.models.info import load_tokenizer
from tests.unit.cluster.explain.test_page import data_of
from tests.unit.evals.conftest import MODELS
from tests.unit.evals.questions.texts import LINES, TEXT, written

RATE = 0.05


@pytest.fixture
def settings(tmp_path):
    return EvalSettings(
        str(MODELS / "target"), str(MODELS / "speculator"), keep_rates=(RATE, 1.0), samples=9, engine="mock",
        questions=written(tmp_path / "questions.jsonl"), resume=tmp_path / "journal.jsonl",
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """The target answers rightly if the fact is among the tokens that it reads. Gives the texts that it read."""
    tokenizer, seen = load_tokenizer(str(MODELS / "target")), []

    async def answer(self, kept, extra_args=None, limit=None):
        text = tokenizer.decode(kept.token_ids)
        seen.append(text)
        if "the roof of the hall leaks" not in text:
            return "It does not say."
        return "The roof of the hall."

    monkeypatch.setattr(InProcess, "_answer", answer)
    return seen


def scores(result, case):
    return {
        name: figure(one for one in outcomes(result)[case] if one.set == name).score for name in ("choice", "words")
    }


def test_a_way_that_drops_the_evidence_scores_lower(settings, asked):
    result = run(settings)
    assert len(result["samples"]) == 4, "a question whose evidence alone is scored has no answer"
    right = {"choice": 1.0, "words": 1.0}
    assert scores(result, ("dense", 1.0)) == scores(result, (DEFAULT, 0.0)) == scores(result, (BM25, RATE)) == right
    # Controls: the end of the text and the question alone do not hold the fact, though the target is the same.
    nothing = {"choice": 0.0, "words": 0.0}
    assert scores(result, ("last", RATE)) == scores(result, (NO_DOCUMENT, 0.0)) == nothing
    assert figure(outcomes(result)["last", RATE]).difference == (-1, -1, -1)


def test_all_ways_keep_as_many_tokens_as_the_default(settings, asked):
    found = outcomes(run(settings))
    for rate in (0.0, RATE):
        default = [one.kept for one in found[DEFAULT, rate]]
        for way in ("random", "first + last", "last"):
            assert [one.kept for one in found[way, rate]] == default
        assert [one.kept for one in found[BM25, rate]] == pytest.approx(default, abs=0.02)
    assert all(one.kept < 0.05 for one in found[NO_DOCUMENT, 0.0])
    assert any("Question: Whose roof leaks?" in text and TEXT[:60] not in text for text in asked)
    assert len({*asked}) > 4 * (len(found) - 2), "no way keeps what another one keeps, but for a few questions"


def test_a_short_prompt_runs_dense_as_in_serving(settings, asked, tmp_path):
    short = [{"document": "The roof of the hall leaks.", "question": "What leaks?", "answers": ["the roof"]}]
    result = run(replace(settings, questions=written(tmp_path / "short.jsonl", short)))
    assert {one.kept for way in (DEFAULT, BM25, "last") for one in outcomes(result)[way, 0.0]} == {1.0}
    assert len(asked) == 2, "equal prompts are answered once: dense, and no document"


def test_a_run_that_was_cut_off_asks_only_what_is_missing(settings, asked, monkeypatch):
    fresh = run(replace(settings, resume=None))
    at_once = len(asked)
    few = run(replace(settings, samples=1))
    assert 0 < len(asked) - at_once < at_once
    resumed = run(settings)
    assert len(asked) == 2 * at_once
    assert resumed["samples"] == fresh["samples"]
    assert few["samples"] == [
        one for one in fresh["samples"] if one["seed"] in {early["seed"] for early in few["samples"]}
    ]
    monkeypatch.setattr(ask, "start_pair", lambda *_: pytest.fail("engines were started"))
    assert run(settings)["samples"] == fresh["samples"], "no engine is started where all answers are known"
    assert len(asked) == 2 * at_once


def test_the_result_holds_no_text_of_the_user(settings, asked):
    told = json.dumps(run(settings))
    assert "budget" not in told
    assert "leaks" not in told
    assert "questions.jsonl" not in told
    assert "budget" in LINES[0]["document"]


def test_pages_of_worse_answers_show_what_was_kept(settings, asked, monkeypatch, tmp_path):
    pages = tmp_path / "pages"
    run(replace(settings, keep_rates=(1.0,), explain=pages))
    assert [file.name for file in pages.iterdir()] == [INDEX], "no answer of the default is worse"
    answer = InProcess._answer

    async def blind(self, kept, *more):
        return await answer(self, kept, *more) if kept.token_ids.size == kept.context_length else "It does not say."

    monkeypatch.setattr(InProcess, "_answer", blind)
    run(replace(settings, keep_rates=(1.0,), explain=pages, resume=None))
    found = sorted(file.name for file in pages.iterdir() if file.name != INDEX)
    assert len(found) == 4
    data = data_of((pages / found[0]).read_text())
    notes = dict(data["notes"])
    assert (notes["Answer"], notes["Dense answer"]) == ("It does not say.", "The roof of the hall.")
    assert re.fullmatch(r"tokens [\d,]+ to [\d,]+: (\d+) of \1 kept", notes["Evidence"])
    assert notes["Question"] in "".join(piece[4] for piece in data["pieces"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": 2}, "questions of a file have no turns"),
        ({"timed": 1}, "questions of a file have no turns"),
        ({"selectors": ("speculator",)}, "unknown selector 'speculator': choose from default, BM25"),
    ],
)
def test_what_has_no_meaning_for_questions_is_refused(settings, change, message):
    with pytest.raises(SkimError, match=message):
        run(replace(settings, **change))
