"""The messages of long prompts are made in turns with other requests."""

import asyncio

from vllm.logprobs import Logprob
from vllm.outputs import RequestOutput

from kv_transfer.reply_pieces import PIECE_LOGPROBS
from router.vllm_front.engine_client import _request_output
from target_service.vllm_backend.outputs import generate_output

EACH = 21
POSITIONS = 4 * PIECE_LOGPROBS // EACH


async def turns_during(work):
    """The result, and how often another task ran meanwhile."""
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    try:
        return await work, turns
    finally:
        task.cancel()


async def test_other_requests_run_while_the_log_probabilities_of_a_prompt_are_converted():
    told = [None, *({id: Logprob(-0.5 * id, id, f"<{id}>") for id in range(EACH)} for _ in range(POSITIONS))]
    stepped = RequestOutput("r", None, [1], told, [], False)
    message, turns = await turns_during(generate_output(stepped, with_timings=False))
    assert turns >= 3
    assert message.prompt_logprobs[0] is None
    back, turns = await turns_during(_request_output("r", {"prompt_token_ids": [1]}, message))
    assert turns >= 3
    assert back.prompt_logprobs == told
