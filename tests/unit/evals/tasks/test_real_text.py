"""The tasks on real text: an independent reading of the messages gives the expected answer."""

import ast
import json
import re

import pytest

from evals.tasks.associations import SIGHTS, TRADES
from evals.tasks.source_texts import NAMES, functions, paragraphs
from tests.unit.evals.conftest import document

COUNT = 4


def question(sample):
    asked = [message["content"] for message in sample.messages if message["role"] == "user"][-1]
    return asked.rsplit("Question: ", 1)[1]


def words(text):
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def test_the_texts_are_many_and_contain_no_name_of_a_task():
    assert len(paragraphs()) > 400
    assert len(functions()) > 800
    text = " ".join(paragraphs())
    assert not [name for name in NAMES if name in text]
    assert len({function.name for function in functions()}) == len(functions())


@pytest.mark.parametrize("task", ["association", "trade"])
def test_question_and_needle_share_no_word(task, made):
    known = SIGHTS if task == "association" else TRADES
    for sample in made(task, count=COUNT):
        [needle] = sample.quiz.evidence
        assert not words(sample.quiz.question) & words(needle) - {"the"}
        [thing] = [thing for thing in known if sample.quiz.question.endswith(f" {thing}?")]
        assert needle == _sentence(sample.quiz.expected[0], known[thing])
        assert thing not in document(sample).rsplit("\nQuestion", 1)[0]


def _sentence(name, value):
    return f"{name} {value}." if value.startswith("works") else f"The house of {name} stands right next to {value}."


def asked_function(sample):
    name = re.search(r"function `(\w+)`", question(sample))[1]
    signature, *_ = sample.quiz.evidence
    assert signature.startswith(f"def {name}(")
    assert document(sample).count(f"def {name}(") == 1
    source = next(needle for needle in sample.quiz.needles if needle.startswith(signature))
    assert all(text in source for text in sample.quiz.evidence)
    return ast.parse(source).body[0]


def test_the_default_is_that_of_the_code(made):
    for sample in made("default_value", count=COUNT):
        found = asked_function(sample).args
        names = [arg.arg for arg in (*found.posonlyargs, *found.args)]
        values = dict(zip(reversed(names), (ast.unparse(d) for d in reversed(found.defaults)), strict=False))
        values |= {a.arg: ast.unparse(d) for a, d in zip(found.kwonlyargs, found.kw_defaults, strict=True) if d}
        name = re.search(r"parameter `(\w+)`", question(sample))[1]
        assert values[name].strip("'") == sample.quiz.expected[0]


def test_the_error_is_that_of_the_code(made):
    for sample in made("raised_error", count=COUNT):
        assert set(re.findall(r"raise (\w+)", ast.unparse(asked_function(sample)))) == set(sample.quiz.expected)
        assert f"raise {sample.quiz.expected[0]}" in sample.quiz.evidence[1]
        for other in sample.quiz.excluded:
            assert f"raise {other}" in document(sample)


def test_the_returned_constant_is_in_the_last_line(made):
    for sample in made("returned_value", count=COUNT):
        last = ast.unparse(asked_function(sample)).splitlines()[-1].strip()
        assert last.replace("'", "") == f"return {sample.quiz.expected[0]}"
        assert sample.quiz.evidence[1].splitlines()[-1].strip().startswith("return ")


def test_a_passage_is_quoted(made):
    for sample in made("quote", count=COUNT):
        [passage] = sample.quiz.expected
        assert document(sample).count(passage) == 1
        assert passage.startswith(re.search(r'begins with "(.+)"\.', question(sample))[1])


def test_the_result_of_a_tool_holds_the_total(made):
    for sample in made("json_records", count=COUNT):
        assert [message["role"] for message in sample.messages] == ["user", "assistant", "tool"]
        records = [json.loads(line) for line in document(sample).splitlines()]
        total = {record["invoice"]: record["total"] for record in records}
        assert (total[re.search(r"INV-\d+", question(sample))[0]],) == sample.quiz.expected


def test_the_total_stands_in_the_object_of_the_order(made):
    for sample in made("json_objects", count=COUNT):
        records = json.loads(f"[{document(sample)}]")
        total = {record["order"]: record["total"] for record in records}
        assert (total[re.search(r"PO-\d+", question(sample))[0]],) == sample.quiz.expected
        assert sample.quiz.evidence[0].count("\n") > 5


def test_the_host_of_the_failed_job(made):
    for sample in made("log_lines", count=COUNT):
        failed = dict(re.findall(r"ERROR (node-\d+) (job-\w+)", document(sample)))
        hosts = {job: host for host, job in failed.items()}
        assert (hosts[re.search(r"job-\w+", question(sample))[0]],) == sample.quiz.expected
        assert set(sample.quiz.excluded) == set(failed) - set(sample.quiz.expected)


def test_an_agents_second_result_needs_the_first(made):
    for sample in made("agent_loop", count=COUNT):
        roles = [message["role"] for message in sample.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "tool"]
        customers, orders = (
            [json.loads(line) for line in message["content"].splitlines()]
            for message in sample.messages
            if message["role"] == "tool"
        )
        name = re.search(r"order of (\w+)\?", question(sample))[1]
        [number] = [customer["id"] for customer in customers if customer["name"] == name]
        assert [order["tracking"] for order in orders if order["customer"] == number] == list(sample.quiz.expected)
        assert name not in sample.messages[-1]["content"]
        assert sample.messages[-1]["tool_call_id"] == sample.messages[-2]["tool_calls"][0]["id"]


def test_a_summary_states_what_was_decided(made):
    for sample in made("summary", count=COUNT):
        text = document(sample)
        assert set(re.findall(r"Decision: \w+ will \w+ (\d+)", text)) == set(sample.quiz.expected)
        assert set(re.findall(r"(\d+) (?:seats|millimetres)", text)) == set(sample.quiz.excluded)


def test_the_fourth_question_follows_three_right_answers(made):
    for sample in made("scbench/turn_4", count=COUNT):
        assert [message["role"] for message in sample.messages] == ["user", "assistant"] * 3 + ["user"]
        values = dict(re.findall(r"The (\w+ of the \w+ \w+) is (\d{4})\.", document(sample)))
        pairs = [(sample.messages[i]["content"], sample.messages[i + 1]["content"]) for i in (0, 2, 4)]
        for asked, answer in [*pairs, (sample.text, f"{sample.quiz.expected[0]}.")]:
            assert answer == f"{values[re.search(r'What is the (.+?)[?]', asked)[1]]}."
        assert len({*(answer for _, answer in pairs), f"{sample.quiz.expected[0]}."}) == 4
