"""What the explain view tells of a selection, and for how long."""

import numpy as np

from kv_transfer.messages import KeptPrompt, Selection
from router.explain import SelectionLog, explanation
from router.options import PrefillOptions
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import prompt, run


async def test_the_explanation_adds_up():
    ran = await run(pools := LocalPools(), prompt(), keep_rate=0.1, protected_spans=[[0, 3]])
    entry = ran.dispatcher.selections.get("r")
    positions = np.concatenate([np.arange(start, end) for start, end in entry["kept_spans"]])
    assert positions.tolist() == pools.generates[0].prompt.positions.tolist()
    assert all(end < start for (_, end), (start, _) in zip(entry["kept_spans"], entry["kept_spans"][1:], strict=False))
    assert (entry["prompt_tokens"], entry["kept_tokens"]) == (600, positions.size)
    assert entry["keep_rate"] == positions.size / 600
    assert entry["protected_spans"] == [[0, 3]]
    assert entry["options"]["keep_rate"] == 0.1
    assert len(entry["look_ahead_tokens"]) == 8
    assert entry["segments"] is None
    # Numbers only: the view must not show another client's prompt.
    assert not any(isinstance(value, str) for value in entry.values())


def test_the_explanation_of_segments_in_another_order():
    positions = np.r_[0:4, 8:12, 4:6, 14:16].astype(np.int32)
    selection = Selection(KeptPrompt(positions, positions, 16), 1.0, cached_tokens=12)
    entry = explanation(selection, PrefillOptions(), np.empty((0, 2), np.int32), {})
    assert entry["kept_spans"] == [[0, 6], [8, 12], [14, 16]]
    assert entry["segments"] == [[0, 4], [8, 12], [4, 6], [14, 16]]
    assert entry["cached_tokens"] == 12


def test_the_log_holds_the_latest_selections():
    log = SelectionLog(capacity=2)
    for name in ("a-0", "b_0", "c"):
        log.add(name, {"name": name})
    assert log.get("a") is None
    assert log.get("b") == {"name": "b_0"}
    assert log.get("c") == {"name": "c"}
