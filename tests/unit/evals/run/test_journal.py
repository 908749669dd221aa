"""A run that was cut off goes on where it stopped; answers of another run are not taken."""

import json

import pytest

from evals.run.ask import Answer, Timing
from evals.run.journal import Journal
from skim_common.errors import SkimError

TARGET, SELECTION = {"target": "big", "max_tokens": 8}, {"speculator": "small", "look_ahead": 8}
DENSE, SPECULATOR = ("dense", 1.0), ("speculator", 0.2)
ANSWERS = {DENSE: Answer("1", 100, 100), SPECULATOR: Answer("2", 20, 100)}


@pytest.fixture
def sample(made):
    return made("counting")[0]


@pytest.fixture
def path(tmp_path, sample):
    """A file with the answers and timings of one sample."""
    journal = Journal(tmp_path / "run.jsonl", TARGET, SELECTION)
    journal.add(sample, ANSWERS)
    journal.add_timings(sample, [Timing("dense", 1.0, 0.0, 2.5, 100, 100)])
    return tmp_path / "run.jsonl"


def test_what_was_written_is_read(path, sample, made):
    journal = Journal(path, TARGET, SELECTION)
    assert journal.answers(sample) == ANSWERS
    assert journal.timings(sample) == [Timing("dense", 1.0, 0.0, 2.5, 100, 100)]
    other = made("counting", seed=1)[0]
    assert (journal.answers(other), journal.timings(other)) == ({}, [])


def test_other_selections_ask_again_but_keep_dense(path, sample):
    journal = Journal(path, TARGET, SELECTION | {"look_ahead": 0})
    assert journal.answers(sample) == {DENSE: ANSWERS[DENSE]}
    assert journal.timings(sample) == []


def test_later_cases_of_a_sample_join_the_earlier_ones(path, sample):
    more = {("bm25", 0.2): Answer("3", 20, 100)}
    Journal(path, TARGET, SELECTION).add(sample, more)
    assert Journal(path, TARGET, SELECTION).answers(sample) == ANSWERS | more


def test_a_line_that_was_cut_off_is_forgotten(path, sample):
    path.write_text(path.read_text()[:-20])
    journal = Journal(path, TARGET, SELECTION)
    assert journal.answers(sample) == ANSWERS
    assert journal.timings(sample) == []
    journal.add(sample, {("bm25", 0.2): Answer("3", 20, 100)})
    assert len(Journal(path, TARGET, SELECTION).answers(sample)) == 3


def test_answers_of_another_target_are_refused(path):
    with pytest.raises(SkimError, match="has results of another run"):
        Journal(path, TARGET | {"max_tokens": 16}, SELECTION)


@pytest.mark.parametrize("text", ["no JSON\n", "{}\n", json.dumps({"target": TARGET}) + "\n[1]\n"])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(SkimError, match="is not a file that --resume wrote"):
        Journal(tmp_path / "notes.txt", TARGET, SELECTION)


def test_a_folder_that_does_not_exist_is_one_sentence(tmp_path):
    with pytest.raises(SkimError, match=r"cannot use .*No such file or directory"):
        Journal(tmp_path / "nowhere" / "run.jsonl", TARGET, SELECTION)


def test_without_a_file_answers_are_kept_in_memory(sample):
    journal = Journal(None, TARGET, SELECTION)
    journal.add(sample, ANSWERS)
    assert journal.answers(sample) == ANSWERS
