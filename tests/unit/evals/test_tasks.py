"""Generated prompts hold what their answers need, in the right order. Right answers score, wrong answers do not."""

import re
from collections import Counter

import pytest

from evals.quiz import INTRODUCTION, Quiz
from evals.tasks import TASKS, describe, make_samples
from kv_transfer.errors import SkimError

RECORD = re.compile(r"The (\w+ of the \w+ \w+) is (\d{4})\.")


def samples(task, tokens, *, length=1024, count=5, seed=0, style="plain"):
    return list(make_samples([task], [length], count, seed=seed, style=style, tokens=tokens))


def lines(sample):
    """Document and question of a plain prompt."""
    document, question = sample.text.split("\n")
    return document, question.removeprefix("Question: ")


@pytest.mark.parametrize("task", TASKS)
def test_prompts_follow_from_their_seed(task, tokens):
    assert samples(task, tokens) == samples(task, tokens)
    assert samples(task, tokens, count=2) == samples(task, tokens)[:2]
    assert samples(task, tokens)[0].text != samples(task, tokens, seed=1)[0].text
    assert len({sample.text for sample in samples(task, tokens)}) == 5


@pytest.mark.parametrize("style", ["plain", "instruct"])
@pytest.mark.parametrize("length", [1024, 2048])
@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_as_long_as_asked(task, length, style, tokens):
    for sample in samples(task, tokens, length=length, count=2, style=style):
        assert 0 <= tokens(sample.text) - length < 40
        *_, question = sample.text.split("\n")
        assert question.startswith(f"Question: {sample.quiz.question}")
        assert (INTRODUCTION in sample.text) == (style == "instruct") == question.endswith(sample.quiz.hint)


@pytest.mark.parametrize("task", ["single_needle", "multi_key", "multi_query", "multi_value"])
def test_the_values_asked_for_are_those_of_the_records(task, tokens):
    for sample in samples(task, tokens):
        document, question = lines(sample)
        found = {value for key, value in RECORD.findall(document) if key in question}
        assert found == set(sample.quiz.expected)
        assert len(found) == {"single_needle": 1, "multi_key": 1}.get(task, 4)
        others = len(RECORD.findall(document)) - len(found)
        assert others == 0 if task in ("single_needle", "multi_value") else others > 15


@pytest.mark.parametrize("task", ["first_or_last", "last_update", "nth_record"])
def test_the_place_asked_for_is_that_of_the_value(task, tokens):
    asked = set()
    for sample in samples(task, tokens, count=12):
        document, question = lines(sample)
        order, key = re.fullmatch(r"What is the (\w+) (.+)\?", question).groups()
        values = [value for found, value in RECORD.findall(document) if found == key]
        place = {"first": 0, "second": 1, "third": 2, "last": -1}[order]
        assert sample.quiz.expected == (values[place],)
        assert set(sample.quiz.excluded) == set(values) - {values[place]}
        assert len(values) == (2 if task == "first_or_last" else 4)
        asked.add(order)
    assert (
        asked == {"first_or_last": {"first", "last"}, "last_update": {"last"}, "nth_record": {"second", "third"}}[task]
    )


def test_variables_of_the_chain_hold_the_value(tokens):
    for sample in samples("variable_tracking", tokens):
        document, question = lines(sample)
        value = re.search(r"\d{4}", question)[0]
        held: dict[str, str] = {}
        for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", document):
            assert source.isdigit() or source in held, "a variable is assigned before it is copied"
            held[name] = held.get(source, source)
        assert {name for name, v in held.items() if v == value} == set(sample.quiz.expected)
        assert {name for name, v in held.items() if v != value} == set(sample.quiz.excluded)


def test_the_bell_is_counted(tokens):
    for sample in samples("counting", tokens):
        document, question = lines(sample)
        place = re.search(r"bell of the (\w+) ring", question)[1]
        assert sample.quiz.expected == (str(document.count(f"The bell of the {place} rang.")),)


def test_the_winner_won_most_often(tokens):
    for sample in samples("most_frequent", tokens):
        wins = Counter(re.findall(r"(\w+) won a game of chess\.", lines(sample)[0]))
        [(winner, most), (_, second), *_] = wins.most_common()
        assert sample.quiz.expected == (winner,)
        assert set(sample.quiz.excluded) == set(wins) - {winner}
        assert most > second


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("4821", 0.5),
        ("They are 4821, and 77.", 1.0),
        ("4821,77", 1.0),
        ("4,821 or 77", 1.0),
        ("14821 and 4821x", 0.0),
        ("", 0.0),
        ("4821, 77 or 12", 0.0),
    ],
)
def test_the_share_of_what_is_stated(answer, score):
    assert Quiz([], "", "", ("4821", "77"), ("12",)).score(answer) == score


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answer_is_right_and_all_candidates_are_not(task, tokens):
    [sample] = samples(task, tokens, count=1)
    quiz = sample.quiz
    assert quiz.score(", ".join(quiz.expected)) == 1
    assert quiz.score("I do not know.") == 0
    if quiz.excluded:
        assert quiz.score(", ".join([*quiz.expected, *quiz.excluded])) == 0


@pytest.mark.parametrize("task", TASKS)
def test_every_task_says_its_metric(task):
    assert "Metric: " in describe(task)


def test_what_cannot_be_made_is_named(tokens):
    with pytest.raises(SkimError, match=r"unknown task 'juggling': choose from single_needle"):
        samples("juggling", tokens)
    with pytest.raises(SkimError, match=r"task counting at length 64: .* ask for longer"):
        samples("counting", tokens, length=64)
