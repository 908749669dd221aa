"""The log probabilities of a prompt travel in pieces, and arrive as they were."""

import numpy as np
import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.messages import Completion, GenerateOutput, GenerateRequest, KeptPrompt, TokenLogprob
from kv_transfer.reply_pieces import PIECE_LOGPROBS, PieceJoiner, pieces
from tests.unit.actors.mock_actors import replies, target

EACH = 21
IDS = list(range(2, 402)) * 60
"""24,000 tokens: with 21 candidates each, the most that one reply may have."""


def output(token, end=None, **fields):
    return GenerateOutput(
        [Completion(0, "", np.array([token], np.int32), finish_reason=end)], end is not None, **fields
    )


def told(positions):
    return [None, *([TokenLogprob(id, -1.0, id) for id in range(EACH)] for _ in range(positions - 1))]


def ids(prompt_logprobs):
    return [p and [c.token_id for c in p] for p in prompt_logprobs]


def whole(messages):
    joiner = PieceJoiner()
    return [output for message in messages if (output := joiner.add(message)) is not None]


@pytest.mark.parametrize("positions", [1, 2, PIECE_LOGPROBS // EACH, PIECE_LOGPROBS // EACH + 2, 24_000])
def test_the_pieces_make_the_output(positions):
    first = output(7, prompt_logprobs=told(positions), timings={"prefill": 2.0}, cached_tokens=3)
    messages = [encode(piece) for message in (first, output(8, end="stop")) for piece in pieces(message)]
    assert max(map(len, messages)) < 2**20
    got = whole(decode(message, GenerateOutput) for message in messages)
    assert [part.token_ids.tolist() for one in got for part in one.completions] == [[7], [8]]
    assert (dict(got[0].timings), got[0].cached_tokens) == ({"prefill": 2.0}, 3)
    assert ids(got[0].prompt_logprobs) == ids(first.prompt_logprobs)
    assert got[1].prompt_logprobs is None


@pytest.mark.parametrize("position", [None, [TokenLogprob(id, -1.0) for id in range(3 * PIECE_LOGPROBS)]])
def test_positions_of_any_size(position):
    made = [output(7, prompt_logprobs=[position] * 3)]
    got = whole(piece for message in made for piece in pieces(message))
    assert ids(got[0].prompt_logprobs) == ids(made[0].prompt_logprobs)


async def test_a_replica_sends_the_largest_reply_in_pieces():
    sampling = {"max_tokens": 2, "prompt_logprobs": EACH - 1, "ignore_eos": True}
    asked = encode(GenerateRequest("r", KeptPrompt.dense(IDS), sampling))
    _, *messages = await replies(await target(), asked)
    assert max(map(len, messages)) < 2**20 < sum(map(len, messages))
    got = whole(decode(message, GenerateOutput) for message in messages)
    assert [len(position or ()) for position in got[0].prompt_logprobs] == [0, *[EACH] * (len(IDS) - 1)]
    assert sum(part.token_ids.size for one in got for part in one.completions) == 2
