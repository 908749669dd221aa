"""Reads a prompt in windows: each is an ordinary scored request of the engine, and the engine batches them.

The prompt of a window is `head + window + joint + question + tail` (`kv_transfer.messages.Frame`). Its positions begin
at 0. Its KV depends on nothing that stands before the window in the prompt, so the prefix cache serves the next
question about the same text, in any prompt. No token is decoded.

A score is the attention of the retrieval heads to a token, a share of the whole attention of the window's question.
The scores of all windows are compared as they are: what a window does not have goes to its first token and to the
question, and is lost. So a window without an answer has low scores.
"""

import asyncio
import time

import numpy as np
import torch

from kv_transfer.messages import Int32Array, SelectRequest
from kv_transfer.spans import droppable, unit_starts
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.reading.plan import Window, windows_of

QUESTION_SHARE = 4
"""A question takes at most this fraction (1/4) of a window. Of a longer one, its beginning and its end are read."""
SALT = "window"
"""Part of the cache salt of windows: their KV is never that of a whole prompt."""


def reads_in_windows(engine: SpeculatorEngine, request: SelectRequest) -> bool:
    """Whether the prompt is read in windows: it asks for them, and the speculator knows its retrieval heads."""
    return request.asks_for_windows and engine.has_head_profile and request.options.selector != "lexical"


async def read_in_windows(engine: SpeculatorEngine, request: SelectRequest) -> Scores:
    """The scores of the prompt [M]: 0 outside of the windows, which hold all that may be dropped.

    Cancelling this call, and a window that fails, end all windows. Raises as `SpeculatorEngine.score`.
    """
    size, options, began = int(request.token_ids.size), request.options, time.perf_counter()
    starts = unit_starts(size, options, request.units)
    windows = windows_of(request.token_ids, droppable(request), starts, options.window_tokens)
    tasks = [asyncio.create_task(engine.score(_window(request, number, one))) for number, one in enumerate(windows)]
    try:
        read = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    importance = torch.zeros(size)
    head = request.frame.head.size if request.frame is not None else 0
    for (start, end), scores in zip(windows, read, strict=True):
        importance[start:end] = scores.importance[head : head + end - start]
    total = 1e3 * (time.perf_counter() - began)
    queue = min((scores.timings.get("queue", 0.0) for scores in read), default=0.0)
    timings = {"queue": queue, "speculate": max(0.0, total - queue)}
    return Scores(importance, [], timings, sum(scores.cached_tokens for scores in read))


def _window(request: SelectRequest, number: int, window: Window) -> ScoreRequest:
    """The request of one window."""
    frame, asked = request.frame, _question(request)
    assert frame is not None
    text = request.token_ids[slice(*window)]
    first = frame.head.size + text.size + frame.joint.size
    return ScoreRequest(
        f"{request.request_id}.window{number}",
        np.concatenate([frame.head, text, frame.joint, asked, frame.tail]).astype(np.int32),
        request.options,
        cache_salt=f"{SALT}:{request.cache_salt or ''}",
        question=(int(first), int(first + asked.size)),
    )


def _question(request: SelectRequest) -> Int32Array:
    """The question's tokens; of a long question, as many from its beginning as from its end."""
    assert request.question is not None
    asked, most = request.token_ids[slice(*request.question)], request.options.window_tokens // QUESTION_SHARE
    if asked.size <= most:
        return asked
    return np.concatenate([asked[: most - most // 2], asked[-(most // 2) :]])
