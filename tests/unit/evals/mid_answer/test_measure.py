"""`skim bench recall`: the tasks, the ways that are compared, and the result."""

from dataclasses import replace

import pytest

from evals.mid_answer import results
from evals.mid_answer.measure import AS_MANY, DENSE, FRESH, RECALLED, RecallSettings, run
from evals.mid_answer.tasks import TASKS, make_sample
from kv_transfer.errors import SkimError
from tests.unit.evals.conftest import MODELS

SETTINGS = RecallSettings(
    str(MODELS / "target"), str(MODELS / "speculator"), prompt_tokens=3000, samples=1, max_tokens=24, engine="mock"
)


@pytest.mark.parametrize("task", TASKS)
def test_a_prompt_holds_its_evidence_and_no_answer_beside_it(task, tokens):
    sample = make_sample(task, 1500, tokens, "1")
    assert sample.text == make_sample(task, 1500, tokens, "1").text
    assert tokens(sample.text) >= 1500
    [expected] = sample.quiz.expected
    assert all(sample.text.count(text) == 1 for text in sample.quiz.evidence)
    assert sample.text.count(expected) == 1
    assert expected in sample.quiz.evidence[-1]
    assert sample.score(f"It says: {expected}") == 1
    assert sample.score("I do not know.") < 0.9


def test_a_quotation_counts_as_far_as_it_goes(tokens):
    sample = make_sample("summarise_then_quote", 1500, tokens, "1")
    [expected] = sample.quiz.expected
    assert sample.score(f"It is about this. {expected[: len(expected) // 2]}") == pytest.approx(0.5, abs=0.02)


def test_the_ways_are_compared():
    result = run(SETTINGS)
    rows = {(row["task"], row["way"]): row for row in result["rows"]}
    for task in TASKS:
        dense, fresh, recalled, as_many = (rows[task, way] for way in (DENSE, FRESH, RECALLED, AS_MANY))
        assert dense["kept"] == dense["evidence"] == 1
        assert fresh["kept"] <= recalled["kept"] <= as_many["kept"] < 0.3
        assert fresh["kept"] < recalled["kept"] or not recalled["recalls"]
        assert recalled["looks"] > 0
        assert fresh["looks"] == as_many["looks"] == 0
        assert fresh["evidence"] < 1
    columns, table = results.table(result)
    assert len(table) == len(rows)
    assert all(len(row) == len(columns) for row in table)
    assert "the target reads 0 tokens" in results.describe(result)


def test_an_unknown_task_is_refused():
    with pytest.raises(SkimError, match="unknown task 'x'"):
        run(replace(SETTINGS, tasks=("x",)))
