"""`skim eval --turns`: conversations, what each selector keeps of them, and the result."""

import ast
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cluster.in_process.prompts import render
from evals import results
from evals.code import facts
from evals.evidence import evidence_spans
from evals.run import EvalSettings, run
from evals.turns import EXTENDED, NO_LATE, SELECTORS, make_conversations, without_late_chunks
from kv_transfer.errors import SkimError
from kv_transfer.messages import KeptPrompt, Selection
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


def test_a_conversation_about_code_has_its_answers_in_one_passage(tokens, tokenizer):
    made = {"seed": 0, "style": "instruct", "tokens": tokens}
    [conversation] = make_conversations(4, [2000], 1, about="code", **made)
    assert len({sample.quiz.question for sample in conversation}) == 4
    passage = conversation[0].text
    assert tokens(passage) < 2100
    for sample in conversation:
        [evidence] = sample.quiz.evidence
        assert passage.count(evidence) == 1
        assert sample.quiz.score(f"It is `{sample.quiz.expected[0]}`.") == 1
        assert evidence_spans(render(sample.messages, tokenizer), sample.quiz)
    [other] = make_conversations(4, [2000], 1, about="code", **made | {"seed": 1})
    assert other[0].text != passage
    with pytest.raises(SkimError, match="no passage of 40 tokens answers 4 questions"):
        list(make_conversations(4, [40], 1, about="code", **made))


def test_the_facts_of_code_are_those_of_its_syntax_tree():
    lines = [
        "LIMIT = 4096",
        "class Reader(Source):",
        "    def read(self, size=512, mode='text'):",
        "        if size < 0: raise ValueError(size)",
        "        return self.buffer",
        "    def skip(self, count, whence):",
        "        pass",
        "    def plain(self, flag=True):",
        "        return None",
    ]
    found = {(fact.about, fact.line, fact.value) for fact in facts(ast.parse("\n".join(lines)))}
    assert found == {
        ("LIMIT", 1, "4096"),
        ("Reader", 2, "Source"),
        ("read", 3, "text"),
        ("read", 4, "ValueError"),
        ("read", 5, "buffer"),
        ("skip", 6, "whence"),
    }


def test_late_chunks_are_left_out():
    order = np.array([0, 1, 8, 9, 4, 5, 10, 11], np.int32)
    selection = Selection(KeptPrompt(order + 100, order, 12), 0.5, reused_tokens=4)
    assert without_late_chunks(selection).positions.tolist() == [0, 1, 8, 9, 10, 11]
    assert without_late_chunks(selection).token_ids.tolist() == [100, 101, 108, 109, 110, 111]


def test_the_demo_pair_needs_late_chunks():
    """The extended prompt answers later turns as well as a fresh one. Without its late chunks it does not."""
    result = run(replace(SETTINGS, engine="transformers"))
    score = {(cell["selector"], cell["task"]): cell["score"] for cell in result["cells"]}
    later = ("turn 2", "turn 3")
    for turn in later:
        assert score[EXTENDED, turn] == score["dense", turn] == 1
    assert sum(score[NO_LATE, turn] for turn in later) < len(later)
    assert score[NO_LATE, "turn 1"] == score[EXTENDED, "turn 1"], "nothing is late in the first turn"
    columns, rows = results.table(result)
    assert columns[4:] == ["dense", *SELECTORS]
    assert [row[0] for row in rows] == ["turn 1", "turn 2", "turn 3"]
    assert "selected anew" in results.describe(result)


def test_turns_need_engines_in_this_process():
    with pytest.raises(SkimError, match="turns are measured with engines in this process"):
        run(replace(SETTINGS, speculator=None, endpoint="http://127.0.0.1:1"))
