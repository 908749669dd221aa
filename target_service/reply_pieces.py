"""The log probabilities of a prompt travel in several messages: they grow with the prompt, and a message has a limit.

Each piece takes milliseconds to write and to read, so neither end holds its event loop for long.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

from kv_transfer.messages import GenerateOutput, TokenLogprob

PIECE_LOGPROBS = 2**13
"""Log probabilities in one message, if a position has fewer."""

PromptLogprobs = list[list[TokenLogprob] | None]


def pieces(output: GenerateOutput) -> Iterator[GenerateOutput]:
    """The output as one message, or as several with a part of `prompt_logprobs` each; the last one has the rest."""
    positions, begin, held = output.prompt_logprobs or [], 0, 0
    for end, candidates in enumerate(positions):
        held += len(candidates or ())
        if held >= PIECE_LOGPROBS:
            yield GenerateOutput([], False, prompt_logprobs=positions[begin : end + 1])
            begin, held = end + 1, 0
    yield replace(output, prompt_logprobs=positions[begin:]) if begin else output


async def whole(messages: AsyncGenerator[GenerateOutput, None]) -> AsyncGenerator[GenerateOutput, None]:
    """The outputs whose pieces `messages` are. messages: closed in any case."""
    held: PromptLogprobs = []
    async with aclosing(messages):
        async for message in messages:
            if message.is_piece:
                held += message.prompt_logprobs or []
            elif held:
                yield replace(message, prompt_logprobs=held + (message.prompt_logprobs or []))
                held = []
            else:
                yield message
