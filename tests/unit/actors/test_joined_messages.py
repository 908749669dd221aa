"""A target replica sends as many messages of an answer as its router asks for."""

import numpy as np
import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from tests.unit.actors.mock_actors import IDS, replies, target


async def answer(interval_ms):
    sampling = {"max_tokens": 8, "ignore_eos": True}
    request = encode(GenerateRequest("r", KeptPrompt.dense(IDS), sampling, interval_ms=interval_ms))
    _, *messages = await replies(await target(), request)
    parts = [decode(message, GenerateOutput).completions[0] for message in messages]
    return np.concatenate([part.token_ids for part in parts]).tolist(), "".join(part.text for part in parts), len(parts)


@pytest.mark.parametrize(("interval_ms", "messages"), [(0.0, 8), (1e6, 2)])
async def test_the_answer_is_the_same_in_fewer_messages(interval_ms, messages):
    """The first message leaves at once, and the last one does not wait."""
    plain = await answer(0.0)
    assert await answer(interval_ms) == (*plain[:2], messages)
    assert len(plain[0]) == 8
