"""What is known of an answer, whatever the client gets of it. `test_migration` tests the outputs."""

import numpy as np
import pytest

from benchmarks.mock_engines.target import MockTarget
from kv_transfer.messages import CUMULATIVE, DELTA, FINAL_ONLY, GenerateRequest, KeptPrompt
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
