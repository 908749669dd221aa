"""The evidence of every task is found in its prompt, and a wrong place is not taken for it."""

from dataclasses import replace

import numpy as np
import pytest

from evals.selection.evidence import evidence_spans
from evals.selection.prompts import template_messages
from evals.tasks.registry import TASKS
from skim.prompts import render


@pytest.mark.parametrize("task", TASKS)
def test_the_spans_hold_the_evidence_and_little_else(task, made, tokenizer):
    [sample] = made(task)
    prompt = render(template_messages(sample.messages), tokenizer)
    spans = evidence_spans(prompt, sample.quiz)
    assert spans == sorted(set(spans))
    found = [tokenizer.decode(prompt.token_ids[start:end]) for start, end in spans]
    for text in sample.quiz.evidence:
        assert sum(text in part for part in found) == prompt.text.count(text) >= 1
    for part in found:
        text = next(text for text in sample.quiz.evidence if text in part)
        assert len(part) <= len(text) + 8, "a span has at most a part of a token on each side"


def test_a_text_counts_wherever_it_occurs(made, tokenizer):
    [sample] = made("counting")
    spans = evidence_spans(render(template_messages(sample.messages), tokenizer), sample.quiz)
    assert [str(len(spans))] == list(sample.quiz.expected)


def test_what_cannot_be_found_is_an_error(made, tokenizer):
    [sample] = made("single_needle")
    prompt = render(template_messages(sample.messages), tokenizer)
    with pytest.raises(ValueError, match="does not hold the evidence"):
        evidence_spans(prompt, replace(sample.quiz, evidence=("The price of the glass shoe is 1.",)))
    with pytest.raises(ValueError, match="names no evidence"):
        evidence_spans(prompt, replace(sample.quiz, evidence=()))
    ids = render(np.arange(5, 50, dtype=np.int32), tokenizer)
    with pytest.raises(ValueError, match="by the offsets"):
        evidence_spans(ids, sample.quiz)
