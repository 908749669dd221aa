"""The scores of a prompt that goes on behind one that was scored for the same questions.

In the loop of an agent, most turns ask what the turn before asked, and a tool's result is all that is new. The scores
of the old text are known then, so the speculator reads nothing. The new text is kept whole, up to UNSCORED tokens; a
turn that brings more has all of it read and scored. Pure.
"""

from dataclasses import replace

import numpy as np
import torch

from kv_transfer.arrays import Float32Array
from kv_transfer.messages import SelectRequest
from kv_transfer.options import UNSCORED
from kv_transfer.spans import mask_of, spans_of
from speculator_service.engine import Scores
from speculator_service.records import RecordMatch


def known_scores(request: SelectRequest, found: RecordMatch) -> tuple[SelectRequest, Scores] | None:
    """The request with its new text protected, and its scores [M]; None if the prompt must be read.

    found: the record that the prompt extends.
    """
    record, layout, size = found.record, request.layout, request.size
    scored = record.importance.size
    same = record.options == request.options and record.asked == layout.asked(request.token_ids)
    if not same or not record.asked or not 0 < scored <= found.common:
        return None
    starts = np.append(layout.unit_starts(size, request.options), size)
    begin = int(starts[np.searchsorted(starts, scored, "left")])
    unscored = request.droppable[begin:]
    if unscored.sum() > UNSCORED or (layout.rate_spans[:, 1:] > begin).any():
        return None
    importance = np.zeros(size, np.float32)
    importance[:begin] = np.pad(record.importance, (0, begin - scored))
    if unscored.any():
        protected = mask_of(layout.protected, size)
        protected[begin:] = True
        request = replace(request, layout=replace(layout, protected=spans_of(protected)))
    return request, Scores(torch.from_numpy(importance), [], {}, size)


def scored_part(request: SelectRequest, importance: Float32Array) -> Float32Array:
    """The scores up to the last token that may be dropped: `Record.importance`. importance: float32 [M]."""
    droppable = np.flatnonzero(request.droppable)
    return importance[: droppable[-1] + 1] if droppable.size else importance[:0]
