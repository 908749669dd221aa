"""The second read: what the windows rank highest, as one text with the questions after it.

Scores of two windows are compared as they are, although each window shares its own attention out. The second read puts
the best units of all windows before one question, in the order of the text, with the labels that name them. Their
scores then compete in one softmax. What is not read again keeps the scores of the windows.
"""

import time
from dataclasses import replace

import numpy as np
import torch

from kv_transfer.arrays import Float32Array, Int32Array, no_pairs, no_scores
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import plan_of
from speculator_service.engine import Scores, SpeculatorEngine
from speculator_service.reading.read import windows_request
from speculator_service.reading.windows import read_windows
from speculator_service.scoring.passages import passage_importance
from speculator_service.scoring.selection import select


def tokens_again(request: SelectRequest, engine: SpeculatorEngine) -> int:
    """The tokens of the prompt that are read again; 0 without a second read."""
    plan = plan_of(request)
    if request.options.read_again == "off" or plan is None:
        return 0
    room = min(engine.info.max_model_len, engine.info.max_position) - plan.around
    return max(0, min(plan.tokens_again, room))


async def read_again(engine: SpeculatorEngine, request: SelectRequest, scores: Scores, weight: float) -> Scores:
    """The scores of the prompt [M], by passages, with those of a second read.

    request: one that was read in windows. scores: by passages (`scoring.passages`). weight: of the words against the
    heads. Raises as `SpeculatorEngine.score`.
    """
    most = tokens_again(request, engine)
    first = scores.importance.numpy()
    chosen = best_tokens(request, first, most)
    if not chosen.size:
        return scores
    began = time.perf_counter()
    asked = windows_request(engine, request, chosen, np.array([chosen.size], np.int32), ".again")
    read = await read_windows(engine, asked)
    masses, among = np.zeros_like(first), np.zeros(first.size, bool)
    masses[chosen], among[chosen] = read.importance, True
    second = passage_importance(masses, request.layout, weight, among)
    timings = dict(scores.timings)
    timings["speculate"] = timings.get("speculate", 0.0) + 1e3 * (time.perf_counter() - began)
    return replace(scores, importance=torch.from_numpy(ranked_again(first, second)), timings=timings)


def best_tokens(request: SelectRequest, importance: Float32Array, most: int) -> Int32Array:
    """The tokens of the best units and of their labels, of those that may be dropped: at most `most`. int32 [K],
    ascending."""
    droppable = request.droppable
    if most < 1 or not importance[droppable].any():
        return np.zeros(0, np.int32)
    share = most / int(droppable.sum())
    options = request.options.model_copy(update={"keep_rate": min(1.0, share), "coverage": None, "min_keep": share})
    kept, _ = select(
        torch.from_numpy(importance), options, replace(request.layout, rate_spans=no_pairs(), rates=no_scores())
    )
    positions = kept.numpy().astype(np.int32)
    return positions[droppable[positions]][:most]


def ranked_again(first: Float32Array, second: Float32Array) -> Float32Array:
    """The importance [M] of both reads: what was read again has as much as in the first read, shared out as in the
    second. Both: float32 [M]; `second` is 0 where nothing was read again."""
    again = second > 0
    found = first.copy()
    found[again] = second[again] * (first[again].sum() / second[again].sum())
    return found
