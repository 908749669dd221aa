"""A target replica sends as many messages of an answer as its router asks for."""

import numpy as np
import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from tests.unit.actors.mock_actors import IDS, replies, target


async def answer(interval):
    sampling = {"max_tokens": 8, "ignore_eos": True, "stream_interval": interval}
    request = encode(GenerateRequest("r", KeptPrompt.dense(IDS), sampling))
    _, *messages = await replies(await target(), request)
    parts = [decode(message, GenerateOutput).completions[0] for message in messages]
    return np.concatenate([part.token_ids for part in parts]).tolist(), "".join(part.text for part in parts), len(parts)


@pytest.mark.parametrize(("interval", "messages"), [(1, 8), (3, 4), (99, 2)])
async def test_the_answer_is_the_same_in_fewer_messages(interval, messages):
    """The first message leaves at once, and the last one does not wait."""
    plain = await answer(1)
    assert await answer(interval) == (*plain[:2], messages)
    assert len(plain[0]) == 8
