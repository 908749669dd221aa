"""The form of files with questions of people."""

import gzip

import pytest

from evals.questions.file import read_questions
from skim_common.errors import SkimError
from tests.unit.evals.questions.texts import GOLD, TEXT, written


def test_texts_stand_in_the_line_or_in_a_file_beside_it(tmp_path):
    asked = {"question": "What leaks?", "gold": [GOLD], "set": "meetings"}
    written(tmp_path / "documents.jsonl.gz", [{"id": "d1", "text": TEXT}], gzip.open)
    file = written(
        tmp_path / "questions.jsonl.gz", [{**asked, "document": "d1"}, {**asked, "document": TEXT}], gzip.open
    )
    by_id, inline = read_questions(file)
    assert by_id.document == inline.document == TEXT
    assert (by_id.set, by_id.gold, by_id.number) == ("meetings", (tuple(GOLD),), 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"document": TEXT, "question": ""}, "line 1: question must be a text"),
        ({"question": "What?"}, "line 1: document must be a text"),
        ({"document": "short", "question": "What?", "gold": [[0, 9]]}, "line 1: gold must be"),
        ({"document": "short", "question": "What?", "gold": [7]}, "line 1: gold must be"),
        ({"document": "short", "question": "What?", "answers": "short"}, "line 1: answers must be a list of texts"),
        ({"document": "short", "question": "What?", "choices": ["a", ""]}, "line 1: choices must be a list of texts"),
        ({"document": "short", "question": "What?", "score": "bleu"}, "line 1: score must be one of evidence, choice"),
        ([], "it is no JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(SkimError, match=message):
        read_questions(written(tmp_path / "questions.jsonl", [line]))


@pytest.mark.parametrize(
    ("known", "score"),
    [
        ({"choices": ["yes", "no"], "answers": ["A"]}, "choice"),
        ({"answers": ["yes"]}, "f1"),
        ({"answers": ["yes"], "score": "exact"}, "exact"),
        ({}, "evidence"),
    ],
)
def test_the_score_follows_from_what_is_known(tmp_path, known, score):
    [found] = read_questions(written(tmp_path / "mine.jsonl", [{"document": TEXT, "question": "Is it?", **known}]))
    assert found.score == score
