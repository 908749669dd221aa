"""Layouts of prompts, from lists."""

from dataclasses import replace
from typing import Any

import numpy as np

from kv_transfer.layout import TextLayout
from kv_transfer.messages import SelectRequest


def pairs(values: Any) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1, 2)


def layout_of(protected: Any = (), regions: Any = (), question: Any = None, **arrays: Any) -> TextLayout:
    """regions: (start, end, rate) of each. question: a span. arrays: further fields, as lists."""
    made = {name: given if name == "frame" else np.array(given, np.int32) for name, given in arrays.items()}
    if "links" in made:
        made["links"] = made["links"].reshape(-1, 2)
    return TextLayout(
        pairs(protected),
        pairs([region[:2] for region in regions]),
        np.array([rate for *_, rate in regions], np.float32),
        questions=pairs([] if question is None else [question]),
        **made,
    )


def relaid(request: SelectRequest, **changes: Any) -> SelectRequest:
    """The request with another layout. question: a span. changes: fields of the layout, as lists."""
    if "question" in changes:
        asked = changes.pop("question")
        changes["questions"] = [] if asked is None else [asked]
    paired = ("protected", "rate_spans", "questions")
    made = {
        name: pairs(given) if name in paired else given if name in ("frame", "rates") else np.asarray(given, np.int32)
        for name, given in changes.items()
    }
    return replace(request, layout=replace(request.layout, **made))
