"""Requests for prompts that are read in windows."""

import numpy as np

from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import WindowPlan
from tests.unit.kv_transfer.layouts import layout_of

OPTIONS = SelectionOptions(scoring="heads", read="windows", read_again="off", window_tokens=512, protect_last=4)
FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([4, 5], np.int32))
QUESTION = 20


def asking(tokens=16384, seed=0) -> SelectRequest:
    """A text of lines of ten tokens, and a question at its end."""
    ids = np.random.default_rng(seed).integers(10, 900, tokens).astype(np.int32)
    end = tokens - OPTIONS.protect_last
    asked = (end - QUESTION, end)
    units = np.arange(0, end - QUESTION, 10, dtype=np.int32)
    return SelectRequest("r", ids, OPTIONS, layout_of([asked], question=asked, units=units, frame=FRAME))


def plan_of(request: SelectRequest) -> WindowPlan | None:
    """The plan of the windows of a request whose options want windows."""
    return WindowPlan.of(request.droppable, request.layout, request.options.window_tokens)
