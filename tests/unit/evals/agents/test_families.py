"""An agent's conversations: their length, where the evidence stands, and what the scorers accept and reject."""

import json
import random

import pytest

from evals.agents.conversation import ASKED, make_conversations
from evals.agents.edits import EDITS
from evals.agents.execute import passes
from evals.agents.families import AGENTS, describe_family
from evals.agents.lookups import first_call
from evals.selection.evidence import evidence_spans
from evals.selection.prompts import template_messages
from evals.tasks.source_texts import functions, paragraphs
from skim.prompts import render
from skim_common.errors import SkimError

LENGTH, TURNS = 6000, 8
"""The demo tokenizer knows few words, so that real text takes many tokens."""


@pytest.fixture(scope="module")
def asked(tokens):
    """The asked turns of a conversation of each family, by its name."""
    made = make_conversations(AGENTS, TURNS, LENGTH, 1, seed=3, tokens=tokens)
    return {samples[0].task: samples for samples in made}


def results(sample):
    """The texts of the results of the turns' first calls, in order; a shipped order is no such result."""
    texts = [message["content"] for message in sample.messages if message["role"] == "tool"]
    return [text for text in texts if not text.startswith('{"shipped"')]


def said(sample):
    return "\n".join(message["content"] for message in sample.messages)


@pytest.mark.parametrize("family", AGENTS)
def test_prompts_have_the_wanted_length(family, asked, tokens):
    lengths = [sum(tokens(message["content"]) for message in sample.messages) for sample in asked[family]]
    assert len(lengths) == ASKED
    parts = {"edit": [function.source for function in functions()], "correction": paragraphs()}
    longest_part = max(map(tokens, parts.get(family, ["x " * 50])))
    for number, length in enumerate(lengths):
        wanted = LENGTH * (TURNS - ASKED + 1 + number) // (TURNS - ASKED + 1)
        assert 0.97 * wanted <= length <= wanted + longest_part


@pytest.mark.parametrize("family", AGENTS)
def test_a_later_turn_has_the_right_answer_to_the_one_before_it(family, asked):
    for earlier, later in zip(asked[family], asked[family][1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        reply = later.messages[len(earlier.messages)]
        given = reply["tool_calls"][0]["function"] if "tool_calls" in reply else None
        told = json.dumps({**given, "arguments": json.loads(given["arguments"])}) if given else reply["content"]
        assert earlier.quiz.score(told) == 1
        assert later.quiz.score(told) == 0


@pytest.mark.parametrize("family", AGENTS)
def test_the_evidence_is_in_the_prompt(family, asked, tokenizer):
    for sample in asked[family]:
        assert all(said(sample).count(evidence) == 1 for evidence in sample.quiz.evidence)
        prompt = render(template_messages(sample.messages), tokenizer)
        assert evidence_spans(prompt, sample.quiz)
        assert sample.quiz.question in next(m["content"] for m in reversed(sample.messages) if m["role"] == "user")


def test_a_fact_stands_three_results_before_the_latest(asked):
    for sample in asked["fact"]:
        [line] = sample.quiz.evidence
        assert line in results(sample)[-4]
        assert line not in results(sample)[-1]
        right, (wrong, *_) = sample.quiz.expected[0], sample.quiz.excluded
        assert sample.quiz.score(f"The bin is {right}.") == 1
        assert sample.quiz.score(wrong) == sample.quiz.score(f"{right} or {wrong}") == 0


def test_a_value_is_corrected_later(asked):
    for number, sample in enumerate(asked["correction"]):
        (new,), (old,), (evidence,) = sample.quiz.expected, sample.quiz.excluded, sample.quiz.evidence
        assert f" is {old}." in results(sample)[-4]
        assert said(sample).index(f" is {old}.") < said(sample).index(evidence)
        last_but_one = [m["content"] for m in sample.messages if m["role"] == "user"][-2]
        assert (evidence in last_but_one, evidence in results(sample)[-2]) == (number % 2 == 1, number % 2 == 0)
        assert sample.quiz.score(f"It is {new}.") == 1
        assert sample.quiz.score(old) == 0


def test_the_next_call_needs_two_ids(asked):
    for sample in asked["call"]:
        order, carrier = map(json.loads, sample.quiz.evidence)
        assert sample.quiz.evidence[0] in results(sample)[-4]
        assert sample.quiz.evidence[1] in results(sample)[0]
        wanted = {"name": "ship_order", "arguments": {"order": order["order"], "carrier": carrier["id"]}}
        assert sample.quiz.score(f"<tool_call>\n{json.dumps(wanted)}\n</tool_call>") == 1
        for wrong in ({"order": "O-1"}, {"carrier": "C-1"}, {"express": True}):
            other = {**wanted, "arguments": {**wanted["arguments"], **wrong}}
            assert sample.quiz.score(json.dumps(other)) == 0
            assert sample.quiz.score(f"{json.dumps(other)}\n{json.dumps(wanted)}") == 0, "the first call is run"
        assert sample.quiz.score(json.dumps({**wanted, "name": "list_orders"})) == 0


def test_calls_are_found_in_any_text():
    assert first_call('{"a": 1} and {"name": "f", "arguments": {"x": {"y": 2}}}') == ("f", {"x": {"y": 2}})
    assert first_call('{"name": "f"}') == ("f", {})
    assert first_call('{"name": "f", "arguments": ') is first_call("none") is None


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_is_told_from_the_function_as_it_was(kind):
    """Also the values of another function of the same kind fail: the answer needs the one of the prompt."""
    for seed in range(3):
        edit, other = kind("lima", random.Random(seed)), kind("lima", random.Random(seed + 100))
        assert passes(edit.right, edit.tests)
        assert not passes(edit.source, edit.tests)
        assert not passes(other.right, edit.tests)


def test_an_edit_is_asked_of_the_latest_file_or_of_one_before(asked):
    for number, sample in enumerate(asked["edit"]):
        [source] = sample.quiz.evidence
        assert source in results(sample)[-3 if number % 2 else -1]
        assert sample.quiz.score(f"```python\n{source}\n```") == 0


def test_conversations_differ_by_seed_and_repeat(tokens):
    def made(seed, count):
        return [c[-1].messages for c in make_conversations(AGENTS, 6, 2000, count, seed=seed, tokens=tokens)]

    one, two = made(0, 1), made(0, 2)
    assert two[: len(one)] == one
    assert not [messages for messages in made(1, 1) if messages in two]
    assert all(two.count(messages) == 1 for messages in two)


@pytest.mark.parametrize(
    ("turns", "length", "message"),
    [
        (5, 2500, "6 to 12 turns, not 5"),
        (8, 1500, "prompts under 2000 tokens run dense"),
        (6, 900_000, "there is not enough text for the results of tools"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(turns, length, message, tokens):
    with pytest.raises(SkimError, match=message):
        list(make_conversations(AGENTS, turns, length, 1, seed=0, tokens=tokens))


@pytest.mark.parametrize("family", [*AGENTS, "bfcl"])
def test_every_family_says_its_metric(family):
    assert "Metric: " in describe_family(family)
