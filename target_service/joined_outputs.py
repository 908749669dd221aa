"""Outputs that follow each other fast travel as one message.

A message costs the replica and the router about as much CPU time with ten tokens as with one. A router that runs many
answers therefore asks for fewer messages (`GenerateRequest.interval_ms`).
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from kv_transfer.messages import Completion, GenerateOutput
from kv_transfer.reply_pieces import PIECE_LOGPROBS
from skim_common.deadline import NO_DEADLINE, Deadline


async def joined(
    outputs: AsyncGenerator[GenerateOutput, None],
    interval_ms: float,
    clock: Callable[[], float] = time.monotonic,
    deadline: Deadline = NO_DEADLINE,
) -> AsyncGenerator[GenerateOutput, None]:
    """The outputs of one request, with at least `interval_ms` between two of them; those in between are joined.

    outputs: of kind DELTA; closed in any case. clock: seconds. deadline: of the outputs; an error follows it. The first
    and the last output never wait. An output that comes too soon waits for the next one, not for a timer: a timer for
    each token would cost more than it saves. What was held back comes before an error.
    """
    held: GenerateOutput | None = None
    sent = float("-inf")
    async with aclosing(outputs):
        try:
            while (output := await deadline.next(outputs)) is not None:
                held = output if held is None else join(held, output)
                if output.finished or _is_large(held) or 1e3 * (clock() - sent) >= interval_ms:
                    due, held, sent = held, None, clock()
                    yield due
        except Exception:
            if held is not None:
                yield held
            raise
    if held is not None:
        yield held


def _is_large(output: GenerateOutput) -> bool:
    """Whether the message has enough log probabilities: joined with others it could pass the limit of a message."""
    return sum(len(told) for part in output.completions for told in part.logprobs or ()) >= PIECE_LOGPROBS


def join(first: GenerateOutput, second: GenerateOutput) -> GenerateOutput:
    """Two outputs of kind DELTA that follow each other as one."""
    parts = {part.index: part for part in first.completions}
    for part in second.completions:
        parts[part.index] = _join(parts[part.index], part) if part.index in parts else part
    return replace(
        second,
        completions=list(parts.values()),
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        created_tokens=max(first.created_tokens, second.created_tokens),
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        timings={**second.timings, **first.timings},
    )


def _join(first: Completion, second: Completion) -> Completion:
    known = first.logprobs is not None or second.logprobs is not None
    return replace(
        second,
        text=first.text + second.text,
        token_ids=np.concatenate([first.token_ids, second.token_ids]),
        logprobs=[*(first.logprobs or []), *(second.logprobs or [])] if known else None,
    )
