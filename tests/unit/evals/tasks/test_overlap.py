"""A quotation scores by its characters; another passage, all passages and a paraphrase with other words do not."""

import pytest

from evals.tasks.metrics import SMALLEST, overlap
from evals.tasks.source_texts import paragraphs

PASSAGE = "The queue can be closed while items are still waiting, and those are then returned in their order."


@pytest.mark.parametrize("answer", [PASSAGE, f'"{PASSAGE}"', PASSAGE.replace(" ", "\n"), f"> {PASSAGE}\n"])
def test_an_exact_quotation_is_right(answer):
    assert overlap(PASSAGE, answer) == 1


def test_a_small_mistake_costs_little_and_a_missing_half_costs_more():
    assert 0.95 < overlap(PASSAGE, PASSAGE.replace("items", "parts")) < 1
    assert SMALLEST <= overlap(PASSAGE, PASSAGE[: len(PASSAGE) // 2]) < 0.7


def test_no_quotation_scores_nothing():
    assert overlap(PASSAGE, "") == 0
    assert overlap(PASSAGE, "The passage is about a queue that may be closed early.") == 0
    assert overlap(PASSAGE, f"{PASSAGE} {' '.join(paragraphs()[:5])}") == 0


def test_another_paragraph_is_no_quotation():
    some = [part for part in paragraphs() if len(part) < 260][:40]
    taken = [(a, b) for a in some for b in some if a != b and overlap(a, b) > 0]
    assert len(taken) < 0.01 * len(some) ** 2, "a few paragraphs of the library are variants of one text"
