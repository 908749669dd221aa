"""`skim heads`, with a search that finds a known profile."""

import pytest

from skim_common.errors import SkimError
from speculator_service.scoring.heads import Head, HeadProfile, known, load
from tests.unit.conftest import MODELS
from tests.unit.evals.questions.texts import GOLD, TEXT, written

PROFILE = HeadProfile(
    model="owner/some", fingerprint="f", question=0.5, last=0.5, heads=(Head(layer=1, head=2, weight=0.5),)
)


class Engine:
    closed, asked = False, None

    def close(self):
        self.closed = True


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """What the search was asked for, with `found` as its result."""
    engine = Engine()
    engine.found = PROFILE

    def create(kind, model, *, options):
        engine.asked = kind, model, options
        return engine

    async def find_heads(given, model, progress):
        assert given is engine
        progress(0, 24)
        return engine.found

    monkeypatch.setattr("speculator_service.engine.create_engine", create)
    monkeypatch.setattr("speculator_service.start.find_heads.find_heads", find_heads)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return engine


@pytest.mark.parametrize("output", [None, "own.json"])
def test_the_profile_is_saved_where_engines_look_or_where_it_is_told(skim, engine, tmp_path, output):
    flags = ("--speculator-options", '{"dtype": "float32"}')
    ran = skim("heads", MODELS / "speculator", *flags, *(["-o", output] if output else []))
    assert ran.code == 0, ran.err
    assert engine.asked == ("vllm", str(MODELS / "speculator"), {"enforce_eager": True, "dtype": "float32"})
    assert engine.closed
    assert (load(tmp_path / output) if output else known("f")) == PROFILE
    assert (known("f") is None) == (output is not None)
    assert "(1, 2) 0.5" in ran.out


def test_what_the_heads_earn_is_measured_on_questions(skim, engine, tmp_path, monkeypatch):
    gains = []

    async def gold_kept(given, tokenizer, question, ways, keep_rates):
        gains.append(question.question)
        return {"heads, windows": [[0.75], []], "lexical": [[0.5], []]}

    monkeypatch.setattr("evals.questions.kept.gold_kept", gold_kept)
    lines = [{"document": TEXT, "question": "What leaks?", "gold": [GOLD], "set": name} for name in ("one", "two")]
    written(tmp_path / "questions.jsonl", lines)
    ran = skim("heads", MODELS / "speculator", "--questions", tmp_path)
    assert ran.code == 0, ran.err
    assert (len(gains), known("f").gain_over_words) == (2, 0.25)
    assert "+0.250" in ran.out


def test_a_user_without_a_home_is_told_before_the_engine_starts(skim, engine, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    ran = skim("heads", MODELS / "speculator")
    assert (ran.code, engine.asked) == (2, None)
    assert "this user has no home folder for the head profile" in ran.error
    assert skim("heads", MODELS / "speculator", "-o", "own.json").code == 0


def test_a_model_without_good_heads_is_an_error(skim, engine):
    engine.found = None
    ran = skim("heads", MODELS / "speculator")
    assert ran.code == 2
    assert "find what a question asks for" in ran.err
    assert engine.closed


def test_the_error_of_an_engine_is_told(skim, engine, monkeypatch):
    async def fails(*_):
        raise SkimError("the engine is dead")

    monkeypatch.setattr("speculator_service.start.find_heads.find_heads", fails)
    assert "the engine is dead" in skim("heads", MODELS / "speculator").err
    assert engine.closed
