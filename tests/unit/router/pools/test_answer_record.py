"""What is known of an answer, whatever the client gets of it. `test_migration` tests the outputs."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.target import MockTarget
from kv_transfer.messages import Completion, GenerateOutput, GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.sampling import CUMULATIVE, DELTA, FINAL_ONLY
from router.pools.answer_record import AnswerRecord
from tests.unit.router.conftest import MODELS

PROMPT = KeptPrompt.dense([20, 21, 22])


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA, FINAL_ONLY])
async def test_the_tokens_of_the_first_answer(kind: int) -> None:
    record = AnswerRecord(GenerateRequest("r", PROMPT, {"max_tokens": 40, "output_kind": kind}))
    sizes = [record.first_token_ids.size]
    async for output in MockTarget(str(MODELS / "target")).generate(record.asked):
        record.add(output)
        sizes.append(record.first_token_ids.size)
    assert sizes[:2] == [0, 1]
    [answer] = [
        o
        async for o in MockTarget(str(MODELS / "target")).generate(
            GenerateRequest("r", PROMPT, {"max_tokens": 40, "output_kind": FINAL_ONLY})
        )
    ]
    assert np.array_equal(record.first_token_ids, answer.completions[0].token_ids)


def test_of_several_answers_that_go_on_alone_the_first_one_has_the_drafting_session() -> None:
    """A session follows one answer. Two would contradict each other, and it would be opened again in every step."""
    prompt = replace(PROMPT, session=SessionHandle("a:1", "s"))
    record = AnswerRecord(GenerateRequest("r", prompt, {"max_tokens": 40, "n": 3}))
    for index in range(2):
        record.add(GenerateOutput([Completion(index, "a", np.array([7], np.int32))], finished=False))
    assert [record.continuation(index).prompt.session is not None for index in range(3)] == [True, False, False]
    assert [record.continuation(index).answered for index in range(3)] == [1, 1, 0]
