"""How much of the evidence that people marked a selection keeps."""

import pytest

from evals.questions.kept import QuestionsSettings, run, table
from skim_common.errors import SkimError
from tests.unit.evals.questions.texts import GOLD, TEXT, written
from tests.unit.router.conftest import MODELS


def test_a_file_without_gold_is_refused(tmp_path):
    file = written(tmp_path / "questions.jsonl", [{"document": TEXT, "question": "What leaks?"}])
    with pytest.raises(SkimError, match="no question with gold"):
        run(QuestionsSettings(str(MODELS / "speculator"), file, engine="mock"))


def test_the_gold_that_is_kept(tmp_path):
    lines = [{"document": TEXT, "question": "What of the hall leaks?", "gold": [GOLD], "set": "meetings"}]
    file = written(tmp_path / "questions.jsonl", lines)
    settings = QuestionsSettings(
        str(MODELS / "speculator"), file, ways=("lexical",), engine="mock", journal=tmp_path / "journal.jsonl"
    )
    result = run(settings)
    assert [(row["set"], row["gold"], row["of"]) for row in result["rows"]] == [("meetings", 1.0, 1)] * 2
    assert table(result)[1][0][:3] == ["meetings", "lexical", "1"]
    # Control: a question about other words does not find it.
    other = written(tmp_path / "other.jsonl", [{**lines[0], "question": "Who is the clerk with the small budget?"}])
    assert (
        run(QuestionsSettings(str(MODELS / "speculator"), other, ways=("lexical",), engine="mock"))["rows"][0]["gold"]
        < 1
    )
