"""The second read: what the windows rank highest, as one text with the questions after it.

Scores of two windows are compared as they are, although each window shares its own attention out. The second read puts
the best units of all windows before one question, in the order of the text, with the labels that name them. Their
scores then compete in one softmax. `scoring.passages` ranks by both reads.
"""

from dataclasses import replace

import numpy as np
import torch

from kv_transfer.arrays import Float32Array, Int32Array, no_pairs, no_scores
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import plan_of
from speculator_service.apart import apart
from speculator_service.engine import SpeculatorEngine
from speculator_service.reading.read import read_texts
from speculator_service.scoring.passages import Masses
from speculator_service.scoring.selection import select


def tokens_again(request: SelectRequest, engine: SpeculatorEngine) -> int:
    """The tokens of the prompt that are read again; 0 without a second read."""
    plan = plan_of(request)
    if request.options.read_again == "off" or plan is None:
        return 0
    room = min(engine.info.max_model_len, engine.info.max_position) - plan.around
    return max(0, min(plan.tokens_again, room))


async def read_again(engine: SpeculatorEngine, request: SelectRequest, importance: Float32Array) -> Masses | None:
    """What a second read finds; None if there is none.

    request: one that was read in windows. importance: by passages (`scoring.passages`), float32 [M].
    Raises as `SpeculatorEngine.score`.
    """
    chosen = await apart(request.size, best_tokens, request, importance, tokens_again(request, engine))
    if not chosen.size:
        return None
    [scores] = await read_texts(engine, request, {".again": request.token_ids[chosen]})
    masses, read = np.zeros_like(importance), np.zeros(importance.size, bool)
    masses[chosen], read[chosen] = scores.importance.numpy(), True
    return Masses(masses, read)


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
