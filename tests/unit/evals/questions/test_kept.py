"""How much of the evidence that people marked a selection keeps."""

import pytest

from evals.questions.kept import OF_WORDS, QuestionsSettings, run, table
from evals.questions.plain_words import blind_units, bm25, stem_counts, with_neighbours
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


def test_a_folder_is_measured_by_ways_of_words_without_a_model(tmp_path):
    lines = [
        {"document": TEXT, "question": asked, "gold": [GOLD], "set": name}
        for name, asked in (("seen", "What of the hall leaks?"), ("blind", "Where does water come in?"))
    ]
    written(tmp_path / "questions.jsonl", lines)
    rows = run(QuestionsSettings(str(MODELS / "speculator"), tmp_path, ways=OF_WORDS))["rows"]
    assert [row["blind_of"] for row in rows if row["keep_rate"] == 0.1] == [0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0]
    plain = {row["set"]: row for row in rows if (row["way"], row["keep_rate"]) == ("plain BM25", 0.1)}
    assert plain["seen"]["gold"] == 1.0
    read = {row["set"]: row["gold"] for row in rows if (row["way"], row["keep_rate"]) == ("read by auto", 0.1)}
    assert read == {"seen": 0, "blind": 1, "mean of the sets": 0.5}
    assert plain["mean of the sets"]["gold"] == (1 + plain["blind"]["gold"]) / 2


def test_plain_bm25_counts_units_by_themselves_and_blind_ones_share_no_rare_word():
    units = ["The roof leaks. ", "The chair spoke. ", "The clerk spoke. ", "Leaking roofs, said the clerk. ", "No."]
    begins = [sum(map(len, units[:place])) for place in range(len(units))]
    counts, sizes = stem_counts("".join(units), begins, "Who said that the roof leaks, the clerk?")
    assert sizes.tolist() == [3, 3, 3, 5, 1]
    scores = bm25(counts, sizes)
    assert scores.argmax() == 0
    assert scores[1] == scores[4] == 0 < with_neighbours(scores)[4]
    assert blind_units(counts).tolist() == [False, True, True, False, True]  # "clerk" is in two of five
