"""Reads a prompt in windows: each is an ordinary scored request of the engine, and the engine batches them.

The prompt of a window is `head + window + joint + questions + tail` (`kv_transfer.layout.Frame`). Its positions begin
at 0. Its KV depends on nothing that stands before the window in the prompt, so the prefix cache serves the next
question about the same text, in any prompt. No token is decoded.

A score is the attention of the retrieval heads to a token, a share of the whole attention of the window's question.
The scores of all windows are compared as they are: what a window does not have goes to its first token and to the
question, and is lost. So a window without an answer has low scores.
"""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import torch

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import QUESTION_SHARE, asks_for_windows, plan_of, shares
from speculator_service.apart import apart
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine, TooLongError
from speculator_service.reading.plan import windows_of

LEAST_HALVED = 256
"""Tokens. A shorter text is too long only with a question that is too long itself."""


def reads_in_windows(engine: SpeculatorEngine, request: SelectRequest) -> bool:
    """Whether the prompt is read in windows: it asks for them, and the speculator knows its retrieval heads."""
    return asks_for_windows(request) and engine.info.has_head_profile and request.options.selector != "lexical"


async def read_in_windows(engine: SpeculatorEngine, request: SelectRequest) -> Scores:
    """The scores of the prompt [M]: 0 for what may not be dropped. The windows hold all that may be.

    request: one that is read in windows (`reads_in_windows`). Cancelling this call, and a window that fails, end all
    windows. Raises as `SpeculatorEngine.score`.
    """
    began, plan = time.perf_counter(), plan_of(request)
    assert plan is not None
    starts = request.layout.unit_starts(request.size, request.options)
    windows = await apart(request.size, windows_of, request.token_ids, plan, starts)
    texts = {f".window{start}": request.token_ids[start:end] for start, end in windows}
    read = await read_texts(engine, request, texts)
    importance = np.zeros(request.size, np.float32)
    for (start, end), scores in zip(windows, read, strict=True):
        importance[start:end] = scores.importance.numpy()
    importance[~request.droppable] = 0
    queue = min((scores.timings.get("queue", 0.0) for scores in read), default=0.0)
    timings = {"queue": queue, "speculate": max(0.0, 1e3 * (time.perf_counter() - began) - queue)}
    return Scores(torch.from_numpy(importance), [], timings, sum(scores.cached_tokens for scores in read))


async def read_texts(engine: SpeculatorEngine, request: SelectRequest, texts: dict[str, Int32Array]) -> list[Scores]:
    """The scores of each text, which is read as a short prompt with the questions of `request` behind it.

    texts: tokens, int32 [n], by what is added to the request's id. One that is too long for the speculator in its own
    tokens is read in halves. Raises as `SpeculatorEngine.score`.
    """
    questions = _questions(request)
    tasks = [asyncio.create_task(_halved(engine, request, name, text, questions)) for name, text in texts.items()]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _halved(
    engine: SpeculatorEngine, request: SelectRequest, name: str, text: Int32Array, questions: Sequence[Int32Array]
) -> Scores:
    try:
        return await _read(engine, request, name, text, questions)
    except TooLongError:
        if text.size < LEAST_HALVED:
            raise
    half = text.size // 2
    parts = [
        await _halved(engine, request, f"{name}.{at}", part, questions)
        for at, part in ((0, text[:half]), (1, text[half:]))
    ]
    importance = torch.cat([part.importance for part in parts])
    return Scores(importance, [], parts[0].timings, sum(part.cached_tokens for part in parts))


async def _read(
    engine: SpeculatorEngine, request: SelectRequest, name: str, text: Int32Array, questions: Sequence[Int32Array]
) -> Scores:
    frame = request.layout.frame
    assert frame is not None
    parts, spans = [frame.head, text], []
    size = frame.head.size + text.size
    for question in questions:
        parts += [frame.joint, question]
        size += frame.joint.size + question.size
        spans.append((size - question.size, size))
    scores = await engine.score(
        ScoreRequest(
            request.request_id + name,
            np.concatenate([*parts, frame.tail]).astype(np.int32),
            request.options,
            cache_salt=request.cache_salt,
            questions=tuple(spans),
        )
    )
    inside = slice(frame.head.size, frame.head.size + text.size)
    return Scores(scores.importance[inside], [], scores.timings, scores.cached_tokens)


def _questions(request: SelectRequest) -> list[Int32Array]:
    """The tokens of each question. They share the room for the questions; of a long one, as many tokens from its
    beginning as from its end."""
    layout, room = request.layout, request.options.window_tokens // QUESTION_SHARE
    assert layout.frame is not None
    room -= (len(layout.questions) - 1) * layout.frame.joint.size
    parts = [request.token_ids[first:end] for first, end in layout.questions.tolist()]
    sizes = shares([part.size for part in parts], room)
    return [
        np.concatenate([part[: size - size // 2], part[part.size - size // 2 :]])
        for part, size in zip(parts, sizes, strict=True)
    ]
