"""A client's text decides units, indents, links and labels: the work over them grows with the prompt in every shape."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from speculator_service.reading import Reading, best_tokens, windows_of
from speculator_service.selection.extension import KnownPrefix, Prompt, extend
from speculator_service.selection.passages import Masses, passage_importance
from speculator_service.service import _fresh_selection
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.speculator_service.reading.asking import FRAME, plan_of

SIZES = 8192, 16384, 32768
MOST = 2.5
"""Times as long, for twice the prompt."""
LEAST_S = 0.01
"""Shorter work counts as so long."""
INDENTS = {
    "flat": lambda units: 0 * units,
    "deeper and deeper": lambda units: units,
    "shallower": lambda units: units.size - units,
    "saw": lambda units: units % 256,
    "half": lambda units: np.where(units < units.size // 2, units, units.size),
}
LABELS = {
    "chain": lambda units: np.maximum(units - 1, 0),
    "one for all": lambda units: 0 * units,
    "tree": lambda units: units // 2,
}
LINKS = {
    "chain": lambda units: np.stack([units[:-1], units[1:]], 1),
    "one with all": lambda units: np.stack([0 * units, units], 1),
    "named": lambda units: np.stack([units, units], 1),
}


def request_of(size, indents, labels, links) -> SelectRequest:
    """Units of one token."""
    end, units = size - 64, np.arange(size - 64)
    layout = layout_of(
        [(end, size)],
        question=(end, size - 40),
        units=units,
        indents=INDENTS[indents](units),
        headings=LABELS[labels](units),
        links=LINKS[links](units),
        gaps=0 * units,
        words=units % 7,
        frame=FRAME,
    )
    options = SelectionOptions(scoring="heads", read="windows", keep_rate=0.1)
    ids = np.random.default_rng(0).integers(0, 500, size).astype(np.int32)
    return SelectRequest("r", ids, options, layout)


def work(request):
    """All that a selection does besides the engine's reads, as (name, call)."""
    size, layout = request.size, request.layout
    importance = np.random.default_rng(1).random(size, np.float32)
    reading = Reading(request, request.droppable, plan_of(request))
    fresh, _ = _fresh_selection(reading, scores := SimpleNamespace(importance=importance))
    kept, last = np.arange(0, size // 2, 5, dtype=np.int32), np.arange(layout.units.size) == layout.units.size - 1
    read = Masses(importance, request.droppable), Masses(importance, request.droppable & (np.arange(size) < size // 2))
    yield "select", lambda: _fresh_selection(reading, scores)
    yield "labels", lambda: layout.labels_of(last)
    yield "passages", lambda: passage_importance(read[0], layout, read[1])
    yield "windows", lambda: windows_of(request.token_ids, reading.plan, layout.units)
    yield "second read", lambda: best_tokens(reading, importance, size // 4)
    prompt, known = Prompt(importance, fresh, request.options, layout), KnownPrefix(kept, size // 2, size // 2)
    yield "extend", lambda: extend(prompt, known)


def seconds(call):
    took = []
    for _ in range(3):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return min(took)


@pytest.mark.parametrize(
    ("indents", "labels", "links"),
    [
        ("flat", "one for all", "one with all"),
        ("deeper and deeper", "chain", "chain"),
        ("shallower", "tree", "named"),
        ("saw", "chain", "one with all"),
        ("half", "tree", "chain"),
    ],
)
def test_the_time_grows_with_the_prompt(indents, labels, links):
    took = [{name: seconds(call) for name, call in work(request_of(size, indents, labels, links))} for size in SIZES]
    for name in took[0]:
        over_all = (took[-1][name] / max(took[0][name], LEAST_S)) ** (1 / (len(SIZES) - 1))
        assert over_all < MOST, (name, [part[name] for part in took])


def test_a_chain_of_labels_is_followed_to_its_first():
    layout = layout_of(units=[0, 1, 2, 3, 4], headings=[0, 0, 1, 3, 2])
    assert layout.labels_of(np.array([0, 0, 0, 0, 1], bool)).tolist() == [True, True, True, False, False]
    assert layout.labels_of(np.array([1, 0, 0, 1, 0], bool)).tolist() == [False] * 5
