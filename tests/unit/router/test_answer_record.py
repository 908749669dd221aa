"""What is known of an answer, whatever the client gets of it. `test_migration` tests the outputs."""

import numpy as np
import pytest

from kv_transfer.messages import GenerateRequest, KeptPrompt
from router.answer_record import AnswerRecord
from target_service.mock_engine import MockTarget
from target_service.sampling import CUMULATIVE, DELTA, FINAL_ONLY
from tests.unit.router.conftest import MODELS

PROMPT = KeptPrompt.dense([20, 21, 22])


async def recorded(keeps_text: bool = True, **sampling: object) -> AnswerRecord:
    record = AnswerRecord(GenerateRequest("r", PROMPT, sampling), keeps_text=keeps_text)
    assert record.first_token_ids.size == 0
    assert record.whole_text is None
    async for output in MockTarget(str(MODELS / "target")).generate(record.asked):
        record.add(output)
    return record


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA, FINAL_ONLY])
async def test_tokens_and_text_of_the_first_answer(kind: int) -> None:
    record = await recorded(max_tokens=40, output_kind=kind)
    [answer] = [
        o
        async for o in MockTarget(str(MODELS / "target")).generate(
            GenerateRequest("r", PROMPT, {"max_tokens": 40, "output_kind": FINAL_ONLY})
        )
    ]
    assert np.array_equal(record.first_token_ids, answer.completions[0].token_ids)
    assert record.whole_text == answer.completions[0].text != ""


async def test_only_a_single_answer_that_ended_has_a_whole_text() -> None:
    assert (await recorded(max_tokens=2, n=2)).whole_text is None
    assert (await recorded(keeps_text=False, max_tokens=2)).whole_text is None
    record = AnswerRecord(GenerateRequest("r", PROMPT, {"max_tokens": 9}), keeps_text=True)
    async for output in MockTarget(str(MODELS / "target")).generate(record.asked):
        record.add(output)
        break
    assert record.first_token_ids.size == 1
    assert record.whole_text is None
