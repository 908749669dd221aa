"""Reads windows: each is an ordinary scored request of the engine, and the engine batches them.

The prompt of a window is `head + window + joint + questions + tail` (`kv_transfer.layout.Frame`). Its positions begin
at 0. Its KV depends on nothing that stands before the window in the prompt, so the prefix cache serves the next
question about the same text, in any prompt. No token is decoded.
"""

import asyncio
from itertools import pairwise

import numpy as np

from kv_transfer.windows import WindowScores, WindowsRequest
from speculator_service.engine import ScoreRequest, SpeculatorEngine


async def read_windows(engine: SpeculatorEngine, request: WindowsRequest) -> WindowScores:
    """The scores of the windows. Cancelling this call, and a window that fails, end all of them.

    Raises as `SpeculatorEngine.score`.
    """
    edges = list(pairwise([0, *request.ends.tolist()]))
    tasks = [asyncio.create_task(engine.score(_window(request, *edge))) for edge in edges]
    try:
        read = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    head = request.frame.head.size
    importance = np.zeros(request.token_ids.size, np.float32)
    for (start, end), scores in zip(edges, read, strict=True):
        importance[start:end] = scores.importance[head : head + end - start].numpy()
    queue_ms = min((scores.timings.get("queue", 0.0) for scores in read), default=0.0)
    return WindowScores(importance, queue_ms, sum(scores.cached_tokens for scores in read))


def _window(request: WindowsRequest, start: int, end: int) -> ScoreRequest:
    """The request of the window [start, end) of `request.token_ids`."""
    frame = request.frame
    parts, questions = [frame.head, request.token_ids[start:end]], []
    size = frame.head.size + end - start
    for asked in np.split(request.questions, request.question_ends[:-1]):
        parts += [frame.joint, asked]
        size += frame.joint.size + asked.size
        questions.append((size - asked.size, size))
    parts.append(frame.tail)
    return ScoreRequest(
        f"{request.request_id}.window{start}",
        np.concatenate(parts).astype(np.int32),
        request.options,
        cache_salt=request.cache_salt,
        questions=tuple(questions),
        window=True,
    )
