"""Questions of people from a file, and how much of their marked evidence is kept."""

import gzip
import json

import pytest

from evals.run.questions import read_questions
from evals.run.questions_kept import QuestionsSettings, run, table
from skim_common.errors import SkimError
from tests.unit.router.conftest import MODELS

TEXT = "\n".join(
    f"The {name} of the meeting said that the budget of {name} is small." for name in ("chair", "clerk") * 40
)
FACT = "The guest of the meeting said that the roof of the hall leaks."
DOCUMENT = f"{TEXT}\n{FACT}\n{TEXT}"
GOLD = [DOCUMENT.index(FACT), DOCUMENT.index(FACT) + len(FACT)]


def written(path, lines, opened=open):
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_texts_stand_in_the_line_or_in_a_file_beside_it(tmp_path):
    asked = {"question": "What leaks?", "gold": [GOLD], "set": "meetings"}
    written(tmp_path / "documents.jsonl.gz", [{"id": "d1", "text": DOCUMENT}], gzip.open)
    file = written(
        tmp_path / "questions.jsonl.gz", [{**asked, "document": "d1"}, {**asked, "document": DOCUMENT}], gzip.open
    )
    by_id, inline = read_questions(file)
    assert by_id.document == inline.document == DOCUMENT
    assert (by_id.set, by_id.gold, by_id.number) == ("meetings", (tuple(GOLD),), 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"document": DOCUMENT, "question": ""}, "line 1: question must be a text"),
        ({"question": "What?"}, "line 1: document must be a text"),
        ({"document": "short", "question": "What?", "gold": [[0, 9]]}, "line 1: gold must be"),
        ({"document": "short", "question": "What?", "gold": [7]}, "line 1: gold must be"),
        ([], "it is no JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(SkimError, match=message):
        read_questions(written(tmp_path / "questions.jsonl", [line]))


def test_a_file_without_gold_is_refused(tmp_path):
    file = written(tmp_path / "questions.jsonl", [{"document": DOCUMENT, "question": "What leaks?"}])
    with pytest.raises(SkimError, match="no question with gold"):
        run(QuestionsSettings(str(MODELS / "speculator"), file, engine="mock"))


def test_the_gold_that_is_kept(tmp_path):
    lines = [{"document": DOCUMENT, "question": "What of the hall leaks?", "gold": [GOLD], "set": "meetings"}]
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
