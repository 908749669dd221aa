"""Generated prompts hold what their answers need, in the right order. Right answers score, wrong answers do not."""

import re

import pytest

from evals.tasks.quiz import INTRODUCTION, Quiz
from evals.tasks.registry import FAMILIES, PUBLISHED, REPLACED, TASKS, describe, expanded, family_of, make_samples
from skim_common.errors import SkimError
from tests.unit.evals.conftest import LENGTHS, document, length_of

HOW = {"seed": 0, "style": "plain"}
GENERATED = list(LENGTHS)
FRAMED = [task for task in expanded(PUBLISHED) if not task.startswith(("repoqa", "ifeval", "scbench"))]
"""Tasks whose messages are made by the template of a benchmark."""
REAL_TEXT = [task for task in TASKS if task not in (*GENERATED, *FRAMED)]
RECORD = re.compile(r"The (\w+ of the \w+ \w+) is (\d{4})\.")


@pytest.fixture
def samples(made):
    """Five plain prompts of a task, unless it is said otherwise."""
    return lambda task, *, count=5, style="plain", **how: made(task, count=count, style=style, **how)


def lines(sample):
    """Document and question of a plain prompt."""
    document, question = sample.text.split("\n")
    return document, question.removeprefix("Question: ")


@pytest.mark.parametrize("task", TASKS)
def test_prompts_follow_from_their_seed(task, samples, tokens):
    first, again = (list(make_samples([task], [length_of(task)], 2, **HOW, tokens=tokens)) for _ in range(2))
    assert first == again
    assert samples(task, count=3)[:2] == first
    assert samples(task, count=1, seed=1)[0].messages != first[0].messages
    assert len({str(sample.messages) for sample in samples(task, count=3)}) == 3


@pytest.mark.parametrize("style", ["plain", "instruct"])
@pytest.mark.parametrize("longer", [1, 2])
@pytest.mark.parametrize("task", GENERATED)
def test_prompts_are_as_long_as_asked(task, longer, style, samples, tokens):
    length = 1024 * longer
    for sample in samples(task, length=length, count=2, style=style):
        assert 0 <= tokens(sample.text) - length < 40
        *_, question = sample.text.split("\n")
        assert question.startswith(f"Question: {sample.quiz.question}")
        assert (INTRODUCTION in sample.text) == (style == "instruct") == question.endswith(sample.quiz.hint)


@pytest.mark.parametrize("style", ["plain", "instruct"])
@pytest.mark.parametrize("task", REAL_TEXT)
def test_real_text_is_as_long_as_asked(task, style, samples, tokens):
    for sample in samples(task, count=2, style=style):
        longest = max(tokens(part) for part in sample.quiz.frame.filler)
        whole = sum(tokens(message["content"]) for message in sample.messages)
        asked = sum(tokens(message["content"]) for message in sample.messages if message["role"] == "user")
        assert length_of(task) <= whole < length_of(task) + longest + asked + 40
        *_, question = [message["content"] for message in sample.messages if message["role"] == "user"]
        assert f"Question: {sample.quiz.question}" in question
        assert (sample.quiz.hint in question) == (style == "instruct")


@pytest.mark.parametrize("task", ["single_needle", "multi_key"])
def test_the_values_asked_for_are_those_of_the_records(task, samples):
    for sample in samples(task):
        text, question = lines(sample)
        found = {value for key, value in RECORD.findall(text) if key in question}
        assert found == set(sample.quiz.expected)
        assert len(found) == 1
        others = len(RECORD.findall(text)) - len(found)
        assert others == 0 if task == "single_needle" else others > 15


@pytest.mark.parametrize("task", ["first_or_last", "last_update", "nth_record"])
def test_the_place_asked_for_is_that_of_the_value(task, samples):
    asked = set()
    for sample in samples(task, count=12):
        text, question = lines(sample)
        order, key = re.fullmatch(r"What is the (\w+) (.+)\?", question).groups()
        values = [value for found, value in RECORD.findall(text) if found == key]
        place = {"first": 0, "second": 1, "third": 2, "last": -1}[order]
        assert sample.quiz.expected == (values[place],)
        assert set(sample.quiz.excluded) == set(values) - {values[place]}
        assert len(values) == (2 if task == "first_or_last" else 4)
        asked.add(order)
    assert (
        asked == {"first_or_last": {"first", "last"}, "last_update": {"last"}, "nth_record": {"second", "third"}}[task]
    )


def test_the_bell_is_counted(samples):
    for sample in samples("counting"):
        text, question = lines(sample)
        place = re.search(r"bell of the (\w+) ring", question)[1]
        assert sample.quiz.expected == (str(text.count(f"The bell of the {place} rang.")),)


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


@pytest.mark.parametrize("task", [*GENERATED, *(task for task in REAL_TEXT if not task.startswith("ifeval"))])
def test_the_right_answer_is_right_and_all_candidates_are_not(task, samples):
    [sample] = samples(task, count=1)
    quiz = sample.quiz
    assert quiz.score(", ".join(quiz.expected)) == 1
    assert quiz.score("I do not know.") == 0
    if quiz.excluded:
        assert quiz.score(", ".join([*quiz.expected, *quiz.excluded])) == 0
    if task in REAL_TEXT:
        assert quiz.score(document(sample)) == 0, "the document names all candidates"


def test_every_task_has_one_family():
    assert sum(map(len, FAMILIES.values())) == len(TASKS)
    assert {family_of(task) for task in TASKS} == set(FAMILIES)
    assert family_of("turn 2") == "turn 2"


def test_the_name_of_a_family_stands_for_its_tasks():
    assert expanded(["mrcr", "single_needle", "ifeval"]) == (
        "mrcr/4_needles", "single_needle", "ifeval/system", "ifeval/middle"
    )  # fmt: skip
    assert len(expanded(["ruler", "ruler/vt"])) == 11


def test_what_was_replaced_is_gone_and_what_replaces_it_is_there():
    assert not REPLACED.keys() & TASKS.keys()
    assert {*REPLACED.values()} <= TASKS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_says_its_metric(task):
    assert "Metric: " in describe(task)


def test_what_cannot_be_made_is_named(samples):
    with pytest.raises(SkimError, match=r"unknown task 'juggling': choose from ruler/niah_single_1"):
        samples("juggling")
    with pytest.raises(SkimError, match=r"task counting at length 64: .* ask for longer"):
        samples("counting", length=64)
