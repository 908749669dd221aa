"""The prompts by which heads are found: their evidence is in them, and they are none of those that evaluate."""

import pytest

from evals.heads.prompts import TASKS, make_prompts
from evals.tasks import registry
from kv_transfer.spans import mask_of
from tests.unit.evals.conftest import REAL


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return list(make_prompts(tokenizer, REAL, 2, seed=5))


def test_each_task_in_turn_with_evidence_that_may_be_dropped(prompts):
    assert [prompt.name.split()[2] for prompt in prompts] == [*TASKS] * 2
    assert all(prompt.rendered.token_ids.size >= REAL for prompt in prompts)
    droppable = []
    for prompt in prompts:
        size = prompt.rendered.token_ids.size
        evidence = mask_of(prompt.evidence, size)
        assert evidence.any()
        droppable.append((evidence & ~mask_of(prompt.rendered.protected.tolist(), size)).any())
    assert sum(droppable) == len(prompts)


def test_a_seed_makes_the_same_prompts_and_another_one_others(prompts, tokenizer):
    again, other = (list(make_prompts(tokenizer, REAL, 1, seed=seed)) for seed in (5, 6))
    ids = [prompt.rendered.token_ids.tolist() for prompt in prompts[: len(TASKS)]]
    assert [prompt.rendered.token_ids.tolist() for prompt in again] == ids
    assert all(prompt.rendered.token_ids.tolist() not in ids for prompt in other)


def test_no_task_is_one_that_evaluates():
    assert not TASKS.keys() & registry.TASKS.keys()
