"""Reads a prompt in windows, each with the questions after it (`windows`), on all replicas of the pool (`share`).

A score is the attention of the retrieval heads to a token, a share of the whole attention of the window's question.
The scores of all windows are compared as they are: what a window does not have goes to its first token and to the
question, and is lost. So a window without an answer has low scores.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import QUESTION_SHARE, Window, WindowsRequest, asks_for_windows, plan_of, shares
from speculator_service.engine import Scores, SpeculatorEngine
from speculator_service.reading.peers import Peers, read_by_peer
from speculator_service.reading.plan import windows_of
from speculator_service.reading.share import shared_out
from speculator_service.reading.windows import read_windows


def reads_in_windows(engine: SpeculatorEngine, request: SelectRequest) -> bool:
    """Whether the prompt is read in windows: it asks for them, and the speculator knows its retrieval heads."""
    return asks_for_windows(request) and engine.info.has_head_profile and request.options.selector != "lexical"


async def read_in_windows(engine: SpeculatorEngine, request: SelectRequest, peers: Peers | None = None) -> Scores:
    """The scores of the prompt [M]: 0 for what may not be dropped. The windows hold all that may be.

    request: one that is read in windows (`reads_in_windows`). peers: read a part of them. Cancelling this call, and a
    window that fails here, end all windows. Raises as `SpeculatorEngine.score`.
    """
    size, options, began = request.size, request.options, time.perf_counter()
    plan = plan_of(request)
    assert plan is not None
    windows = windows_of(request.token_ids, plan, request.layout.unit_starts(size, options))
    parts = _parts(request, windows, peers)
    home = peers.own if peers else ""
    asked = {
        replica: windows_request(
            engine,
            request,
            _places(part),
            np.cumsum([end - start for start, end in part]).astype(np.int32),
            f".{number}" if replica != home else "",
        )
        for number, (replica, part) in enumerate(parts.items())
    }
    own = asyncio.create_task(read_windows(engine, asked[home]))
    tasks = [own]
    if peers:
        others = [replica for replica in parts if replica != home]
        tasks += [asyncio.create_task(read_by_peer(engine, peers, one, asked[one], own)) for one in others]
    try:
        read = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    importance = np.zeros(size, np.float32)
    for part, scores in zip(parts.values(), read, strict=True):
        importance[_places(part)] = scores.importance
    importance[~request.droppable] = 0
    queue = min((scores.queue_ms for part, scores in zip(parts.values(), read, strict=True) if part), default=0.0)
    timings = {"queue": queue, "speculate": max(0.0, 1e3 * (time.perf_counter() - began) - queue)}
    return Scores(torch.from_numpy(importance), [], timings, sum(scores.cached_tokens for scores in read))


def _parts(request: SelectRequest, windows: Sequence[Window], peers: Peers | None) -> dict[str, list[Window]]:
    """The windows of each replica that reads some, in the order of the text. This replica comes first, also without."""
    if peers is None:
        return {"": list(windows)}
    parts: defaultdict[str, list[Window]] = defaultdict(list, {peers.own: []})
    replicas = peers.replicas()
    if peers.own not in replicas:  # it serves not yet, or no longer
        replicas = [peers.own]
    texts = [request.token_ids[slice(*window)] for window in windows]
    for replica, window in zip(shared_out(texts, replicas, request.cache_salt), windows, strict=True):
        parts[replica].append(window)
    return parts


def _places(part: Sequence[Window]) -> Int32Array:
    """The positions of the windows' tokens, int32 [T]."""
    return np.concatenate([np.arange(0), *(np.arange(*window) for window in part)]).astype(np.int32)


def windows_request(
    engine: SpeculatorEngine, request: SelectRequest, places: Int32Array, ends: Int32Array, name: str
) -> WindowsRequest:
    """The request for windows of the tokens at `places`, int32 [T]. ends: as in WindowsRequest.

    name: is added to the request's, so that a replica may read several parts."""
    assert request.layout.frame is not None
    return WindowsRequest(
        request.request_id + name,
        engine.info.path,
        request.token_ids[places],
        ends,
        *_questions(request),
        request.layout.frame,
        request.options,
        request.cache_salt,
        request.envelope.timeout_ms,
        engine.info.heads,
    )


def _questions(request: SelectRequest) -> tuple[Int32Array, Int32Array]:
    """The tokens of the questions, and where each ends. They share the room for the questions; of a long one, as many
    tokens from its beginning as from its end."""
    layout, room = request.layout, request.options.window_tokens // QUESTION_SHARE
    assert layout.frame is not None
    room -= (len(layout.questions) - 1) * layout.frame.joint.size
    parts = [request.token_ids[first:end] for first, end in layout.questions.tolist()]
    sizes = shares([part.size for part in parts], room)
    read = [
        np.concatenate([part[: size - size // 2], part[part.size - size // 2 :]])
        for part, size in zip(parts, sizes, strict=True)
    ]
    return np.concatenate(read), np.cumsum(sizes).astype(np.int32)
