"""`skim eval --turns`: conversations, what each selector keeps of them, and the result."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from evals.results import keep_rates as results
from evals.run.run import EvalSettings, run
from evals.run.turns import EXTENDED, NO_LATE, SELECTORS, make_conversations, without_late_chunks
from evals.selection.evidence import evidence_spans
from evals.selection.selectors import GUARDED
from kv_transfer.messages import KeptPrompt, Selection
from skim.prompts import render
from skim_common.errors import SkimError
from tests.unit.evals.conftest import MODELS

SETTINGS = EvalSettings(
    str(MODELS / "target"), str(MODELS / "speculator"), keep_rates=(0.1, 1.0), lengths=(1500,), samples=2,
    style="plain", engine="mock", max_tokens=6, turns=3,
)  # fmt: skip


def test_a_conversation_asks_about_one_document(tokens, tokenizer):
    [conversation] = make_conversations(3, [1500], 1, seed=0, style="instruct", tokens=tokens)
    assert [sample.task for sample in conversation] == ["turn 1", "turn 2", "turn 3"]
    prompts = [render(sample.messages, tokenizer).token_ids for sample in conversation]
    for earlier, later in pairwise(prompts):
        assert later[: earlier.size].tolist() == earlier.tolist()
    assert len({sample.quiz.expected for sample in conversation}) == 3
    for sample in conversation:
        assert f"is {sample.quiz.expected[0]}." in conversation[0].text


def test_a_conversation_about_code_has_its_answers_in_one_document(tokens, tokenizer):
    made = {"about": "code", "style": "instruct", "tokens": tokens}
    [conversation] = make_conversations(4, [4000], 1, seed=0, **made)
    assert len({sample.quiz.question for sample in conversation}) == 4
    document = conversation[0].text
    for sample in conversation:
        assert all(document.count(evidence) == 1 for evidence in sample.quiz.evidence)
        assert sample.quiz.score(f"It is `{sample.quiz.expected[0]}`.") == 1
        assert evidence_spans(render(sample.messages, tokenizer), sample.quiz)
    [other] = make_conversations(4, [4000], 1, seed=1, **made)
    assert other[0].text != document
    with pytest.raises(SkimError, match="4 turns at length 40: what is asked takes more than half"):
        list(make_conversations(4, [40], 1, seed=0, **made))


def test_late_chunks_are_left_out():
    order = np.array([0, 1, 8, 9, 4, 5, 10, 11], np.int32)
    selection = Selection(KeptPrompt(order + 100, order, 12), 0.5, reused_tokens=4)
    assert without_late_chunks(selection).positions.tolist() == [0, 1, 8, 9, 10, 11]
    assert without_late_chunks(selection).token_ids.tolist() == [100, 101, 108, 109, 110, 111]


def test_every_turn_is_measured_by_every_selector():
    """What the demo pair answers is shown in tests/engine/skim/test_pair.py."""
    result = run(SETTINGS)
    score = {(cell["selector"], cell["task"]): cell["score"] for cell in result["cells"]}
    assert score[NO_LATE, "turn 1"] == score[EXTENDED, "turn 1"], "nothing is late in the first turn"
    columns, rows = results.table(result)
    assert columns[4:] == ["dense", *SELECTORS]
    assert [row[0] for row in rows] == ["turn 1", "turn 2", "turn 3"]
    assert "selected anew" in results.describe(result)


def test_chosen_selectors_are_measured_alone():
    result = run(replace(SETTINGS, selectors=(GUARDED,), keep_rates=(1.0,)))
    assert list(result["selectors"]) == [GUARDED]
    assert {tuple(score[:2]) for sample in result["samples"] for score in sample["scores"]} == {
        ("dense", 1.0),
        (GUARDED, 0.0),
    }
    with pytest.raises(SkimError, match="unknown selector 'heads': choose from auto"):
        run(replace(SETTINGS, selectors=("heads",)))


def test_turns_need_engines_in_this_process():
    with pytest.raises(SkimError, match="turns are measured with engines in this process"):
        run(replace(SETTINGS, speculator=None, endpoint="http://127.0.0.1:1"))
