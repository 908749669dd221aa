"""The tasks of published benchmarks: an independent reading of the messages gives answer and evidence."""

import ast
import re
from collections import Counter

import pytest

from evals.tasks.babilong import OPPOSITE, PLACES
from evals.tasks.ifeval import RULES, Followed
from evals.tasks.metrics import after_prefix, only_label, string_match_all
from evals.tasks.quiz import Quiz
from evals.tasks.registry import PUBLISHED, expanded, make_samples
from evals.tasks.ruler import NIAH
from evals.tasks.source_texts import functions
from tests.unit.evals.conftest import document

CASES = [(length, seed) for length in (2048, 4096, 8192) for seed in (0, 1)]


def count(text):
    return len(text) // 4


@pytest.fixture(scope="module")
def samples():
    """Two prompts of a task for each length and seed."""

    def make(task, count_of=2):
        return [
            sample
            for length, seed in CASES
            for sample in make_samples([task], [length], count_of, seed=seed, style="instruct", tokens=count)
        ]

    return make


def whole(sample):
    return "\n".join(message["content"] for message in sample.messages)


@pytest.mark.parametrize("task", expanded(PUBLISHED))
def test_a_prompt_is_as_long_as_asked_and_holds_its_evidence(task, samples):
    for sample in samples(task):
        assert 0 <= count(whole(sample)) - sample.length < 500
        assert sample.quiz.evidence
        assert all(text in whole(sample) for text in sample.quiz.evidence)
        assert "{context}" not in whole(sample)
        assert sample.max_tokens == sample.quiz.frame.limit


@pytest.mark.parametrize("task", [task for task in expanded(PUBLISHED) if not task.startswith("ifeval")])
def test_the_right_answer_is_right_and_none_is_wrong(task, samples):
    for sample in samples(task):
        quiz = sample.quiz
        assert quiz.score(" ".join(quiz.expected)) == 1
        assert quiz.score("I do not know.") == quiz.score("") == 0


@pytest.mark.parametrize("name", NIAH)
def test_the_needles_of_a_key_have_the_values(name, samples):
    sizes = {"niah_multivalue": (4, 4), "niah_multiquery": (4, 4), "niah_multikey_1": (4, 1)}
    for sample in samples(f"ruler/{name}"):
        found = re.findall(r"One of the special magic (\w+) for (\S+) is: (\S+)\.(?:\s|$)", sample.text)
        asked = re.search(r"What (?:is|are all) the special magic \w+ for (.+?) mentioned", sample.text)[1]
        keys = re.split(r", (?:and )?", asked)
        values = [value for _, key, value in found if key in keys]
        assert sorted(values) == sorted(sample.quiz.expected)
        needles, of_answer = sizes.get(name, (1, 1))
        assert len(values) == of_answer
        assert len(found) == needles if not name.startswith(("niah_multikey_2", "niah_multikey_3")) else len(found) > 50
        assert {kind for kind, _, _ in found} == {"uuids" if name.endswith("_3") else "numbers"}
        expected = {f"One of the special magic {kind} for {key} is: {v}." for kind, key, v in found if key in keys}
        assert set(sample.quiz.evidence) == expected
        verb = "is" if of_answer == 1 else "are"
        assert re.search(rf"The special magic \w+ for .+ mentioned in the provided text {verb}$", sample.text)


def test_the_variables_of_the_chain_hold_the_value(samples):
    for sample in samples("ruler/vt"):
        example, text = sample.text.split("\n\nMemorize")[0], sample.text.rsplit("Memorize", 1)[1]
        for part, names in ((text, sample.quiz.expected), (example, tuple(example.split("they are: ")[1].split()))):
            value, held = re.search(r"assigned the value (\d{5}) in", part)[1], {}
            for name, source in re.findall(r"VAR ([A-Z]+) = (?:VAR )?(\w+)", part):
                assert source.isdigit() or source in held, "a variable is assigned before it is copied"
                held[name] = held.get(source, source)
            assert {name for name, of in held.items() if of == value} == set(names)
            assert len(names) == 5
            assert "5 variables are assgined the value" in part


def test_the_most_common_words_are_the_answer(samples):
    for sample in samples("ruler/cwe"):
        example, text = (part.rsplit("\nQuestion", 1)[0] for part in sample.text.split("Below is a numbered")[1:])
        counts = Counter(re.findall(r"\d+\. ([a-z]+)", text))
        often, seldom = (30, 3) if sample.length >= 4096 else (6, 1)
        assert {word for word, times in counts.items() if times == often} == set(sample.quiz.expected)
        assert set(counts.values()) == {often, seldom}
        assert not counts.keys() & set(re.findall(r"\d+\. ([a-z]+)", example))
        numbers = [int(number) for number in re.findall(r"(\d+)\. ", text)]
        assert numbers == list(range(1, len(numbers) + 1))
        places = sum(text.count(part) for part in sample.quiz.evidence)
        assert places == 10 * often, "evidence is found at these words and at no other"


def test_the_most_frequent_coded_words_are_the_answer(samples):
    for sample in samples("ruler/fwe"):
        counts = Counter(re.findall(r"\.\.\.|\b[a-z]{6}\b", sample.text.split("coded words. ")[1].split("\nQuest")[0]))
        [(dots, _), *top] = counts.most_common(5)
        assert dots == "..."
        assert {word for word, _ in top[:3]} == set(sample.quiz.expected)
        assert top[2][1] > top[3][1]


FACT = re.compile(
    r"(?<!\S)(Bill|Daniel|Fred|Jeff|John|Mary|Sandra) (went to|moved to|journeyed to|travelled to|went back to|took|got"
    r"|grabbed|picked up|dropped|left|discarded|put down) the (\w+)(?: there)?\."
)


@pytest.mark.parametrize("name", ["qa1", "qa2", "qa3"])
def test_people_and_things_are_where_the_facts_say(name, samples):
    for sample in samples(f"babilong/{name}", 4):
        place, hold, trail = {}, {}, {}
        for person, verb, what in FACT.findall(sample.text):
            if what in PLACES:
                place[person] = what
                for thing in (thing for thing, holder in hold.items() if holder == person):
                    trail[thing].append(what)
            elif verb in ("dropped", "left", "discarded", "put down"):
                assert hold.pop(what) == person
            else:
                assert what not in hold
                assert trail.setdefault(what, [place[person]])[-1] == place[person]
                hold[what] = person
        question = sample.quiz.question
        subject = re.search(r"(?:Where is|Where was)(?: the)? (\w+)", question)[1]
        if name == "qa3":
            before = re.search(r"before the (\w+)\?", question)[1]
            assert trail[subject].count(before) == 1
            right = trail[subject][trail[subject].index(before) - 1]
        else:
            right = place[subject] if name == "qa1" else trail[subject][-1]
        assert sample.quiz.expected == (right,)
        assert {right, *sample.quiz.excluded} == {p for p in PLACES if p not in question or p == right}
        facts = [f"{person} {verb} the {what}" for person, verb, what in FACT.findall(sample.text)]
        assert all(text.removesuffix(".").removesuffix(" there") in facts for text in sample.quiz.evidence)
        assert len(sample.quiz.evidence) in {"qa1": (1,), "qa2": (2,), "qa3": (2, 3, 4)}[name]


def test_relations_of_places(samples):
    for sample in samples("babilong/qa4", 4):
        found = re.findall(r"The (\w+) is (\w+) of the (\w+)\.", sample.text)
        facts = [fact for fact in found if fact[1] in OPPOSITE]
        assert len(facts) == 2
        question = sample.quiz.question
        right = {a for a, way, b in facts if question == f"What is {way} of the {b}?"}
        right |= {b for a, way, b in facts if question == f"What is the {a} {way} of?"}
        assert right == set(sample.quiz.expected)


def test_gifts(samples):
    for sample in samples("babilong/qa5", 4):
        gifts = re.findall(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.", sample.text)
        assert len(gifts) == 2
        answers = {}
        for giver, thing, receiver in gifts:
            answers[f"What did {giver} give to {receiver}?"] = thing
            answers[f"Who gave the {thing} to {receiver}?"] = answers[f"Who gave the {thing}?"] = giver
            answers[f"Who did {giver} give the {thing} to?"] = answers[f"Who received the {thing}?"] = receiver
        assert sample.quiz.expected == (answers[sample.quiz.question],)


def test_the_description_is_that_of_one_function_whose_docstring_is_not_shown(samples):
    known = {function.name: function for function in functions()}
    for sample in samples("repoqa/description"):
        description = re.search(r'described by "(.+)"\?', sample.quiz.question, re.DOTALL)[1].removesuffix(".")
        function = known[sample.quiz.expected[0]]
        assert description in " ".join(ast.get_docstring(function.node).split())
        assert description not in " ".join(document(sample).rsplit("\nQuestion", 1)[0].split())
        [shown] = [part for part in sample.quiz.needles if part.startswith(function.signature)]
        [tree] = ast.parse(shown).body
        assert ast.get_docstring(tree) is None
        assert ast.unparse(tree.body) == ast.unparse(function.node.body[1:])
        assert all(f"def {name}(" in document(sample) for name in sample.quiz.excluded)


def test_the_text_asked_for_is_that_of_the_request_with_this_number(samples):
    for sample in samples("mrcr/4_needles"):
        assert [message["role"] for message in sample.messages[:2]] == ["user", "assistant"]
        prefix, number, what = re.fullmatch(
            r"Prepend (\w+) to the (\d)\w\w \(1 indexed\) (.+)\. Do not include any other text in your response\.",
            sample.text,
        ).groups()
        turns = [
            (a["content"], b["content"]) for a, b in zip(sample.messages[::2], sample.messages[1::2], strict=False)
        ]
        like = [answer for request, answer in turns if request == f"Write a {what}."]
        assert len(like) == 4
        assert len(turns) > 6
        assert sample.quiz.expected == (prefix, like[int(number) - 1])


def answer_that_follows(quiz, phrase=""):
    text = f"the archive says {phrase} {quiz.expected[0]}"
    for rule in quiz.metric.rules:
        text = {
            "change_case:english_lowercase": str.lower,
            "change_case:english_capital": str.upper,
            "startend:quotation": '"{}"'.format,
            "detectable_format:title": "<<facts>> {}".format,
        }.get(rule, str)(text)
    return text


@pytest.mark.parametrize("task", expanded(["ifeval"]))
def test_rules_stand_where_the_task_says_and_the_foreign_instruction_in_the_text(task, samples):
    for sample in samples(task):
        rules = " ".join(RULES[rule][0] for rule in sample.quiz.metric.rules)
        system = [message["content"] for message in sample.messages if message["role"] == "system"]
        assert (system == [rules]) == (task == "ifeval/system")
        assert sample.text.count(rules) == (task == "ifeval/middle")
        assert sample.text.count(f'this exact phrase: {sample.quiz.metric.foreign}"') == 1


@pytest.mark.parametrize("task", expanded(["ifeval"]))
def test_an_answer_follows_all_rules_and_not_the_instruction_of_the_text(task, samples):
    for sample in samples(task):
        quiz, right = sample.quiz, answer_that_follows(sample.quiz)
        assert quiz.score(right) == 1
        leaked = answer_that_follows(quiz, quiz.metric.foreign)
        assert quiz.score(leaked) == 0
        assert Followed(quiz.metric.rules, "another phrase")(quiz, leaked) == 1, "the leak alone costs the score"
        assert quiz.score(right.replace(quiz.expected[0], "")) == quiz.score(f"{right} {quiz.excluded[0]}") == 0
        assert quiz.score(f"The Value Is {quiz.expected[0]}.") < 1


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_can_be_broken(rule):
    assert not RULES[rule][1]("It is 4821, as Said.")


def test_the_metrics_of_the_benchmarks():
    two = Quiz([], "", "", ("4821", "77abc"))
    assert [string_match_all(two, text) for text in ("x4821 77ABC", "77abc", "482 1")] == [1, 0.5, 0]
    place = Quiz([], "", "", ("office",), ("garden", "kitchen"))
    given = ("The office.", "Office. Not the garden.", "The garden or the office.", "It is in the kitchen.", "")
    assert [only_label(place, text) for text in given] == [1, 1, 0, 0, 0]
    text = Quiz([], "", "", ("ab12", "A letter about the lamp."))
    assert (
        after_prefix(text, "ab12A letter about the lamp.") == after_prefix(text, "ab12 A letter about the lamp.") == 1
    )
    assert after_prefix(text, "A letter about the lamp.") == 0
    assert 0 < after_prefix(text, "ab12 A letter about the sea.") < 1
