"""The explain view's numbers: every kept token has one reason, and the scores are the chunks' means."""

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from router.explain.explained import DROPPED, REASONS, Explained
from tests.unit.kv_transfer.layouts import layout_of


def explained(positions, size, *, protected=(), scores=None, reused=0, units=(), headings=(), **options):
    kept = np.asarray(positions, np.int32)
    unit_scores = None if scores is None else np.asarray(scores, np.float32)
    selection = Selection(KeptPrompt(kept, kept, size), 0.5, reused_tokens=reused, unit_scores=unit_scores)
    asked = SelectionOptions(**{"keep_rate": 0.2, "chunk_size": 4, "protect_last": 1, **options})
    return Explained(selection, asked, layout_of(protected, units=units, headings=headings))


def test_the_explanation_of_segments_in_another_order():
    entry = explained(np.r_[0:4, 8:12, 4:6, 14:16], 16).as_json()
    assert entry["kept_spans"] == [[0, 6], [8, 12], [14, 16]]
    assert entry["segments"] == [[0, 4], [8, 12], [4, 6], [14, 16]]


def test_each_span_has_a_reason_and_the_mean_score_of_its_tokens():
    entry = explained(np.r_[0:2, 4:12, 15], 16, protected=[[0, 2], [10, 12]], scores=[0.1, 0.4, 0.8, 0.2]).as_json()
    assert entry["spans"] == [
        {"start": 0, "end": 2, "reason": "protected", "score": 0.1},
        {"start": 4, "end": 10, "reason": "top", "score": pytest.approx((4 * 0.4 + 2 * 0.8) / 6, rel=1e-5)},
        {"start": 10, "end": 12, "reason": "protected", "score": 0.8},
        {"start": 15, "end": 16, "reason": "protected", "score": 0.2},
    ]
    assert entry["unit_scores"] == [0.1, 0.4, 0.8, 0.2]


def test_units_of_text_have_their_own_borders():
    entry = explained(np.r_[1:4, 15], 16, units=[0, 1, 4, 9], scores=[0.5, 0.75, 0.25, 0.125]).as_json()
    assert entry["units"] == [0, 1, 4, 9]
    assert [(span["start"], span["end"], span["score"]) for span in entry["spans"]] == [(1, 4, 0.75), (15, 16, 0.125)]
    # Scores of chunks, from a speculator that knows no units of text.
    assert explained(np.r_[1:4, 15], 16, units=[0, 1, 4, 9, 12], scores=[0.5] * 4).as_json()["unit_scores"] is None


def test_a_label_of_kept_text_says_so():
    """Unit 1 names unit 3, which is kept, and is named by unit 0. Unit 2 names nothing that is kept."""
    units, headings = [0, 2, 4, 6, 8], [0, 0, 2, 1, 4]
    reasons = explained(np.r_[0:8, 15], 16, units=units, headings=headings).reasons()
    assert reasons[:8].tolist() == ["label"] * 4 + ["top"] * 4
    control = explained(np.r_[0:8, 15], 16, units=units).reasons()
    assert set(control[:8]) == {"top"}


def test_a_selection_by_coverage_says_so():
    assert set(explained([0, 1, 7], 8, coverage=0.6).reasons()) == {"coverage", "protected", DROPPED}


def test_a_later_turn_tells_old_text_from_late_chunks_and_new_text():
    """0 to 1 and 10 to 11 stand, 4 to 5 are appended after them, 12 to 15 are new; the last token is always kept."""
    reasons = explained(np.r_[0:2, 10:12, 4:6, 12:16], 16, reused=4, protected=[[0, 1]]).reasons()
    named = {0: "protected", 1: "reused", 10: "reused", 11: "reused", 4: "appended", 5: "appended"}
    named |= {12: "new", 13: "new", 14: "new", 15: "protected"}
    assert list(reasons) == [named.get(position, DROPPED) for position in range(16)]


def test_every_kept_token_has_a_reason_and_no_other():
    positions = np.r_[0:3, 20:25, 5:9, 30:40]
    one = explained(positions, 40, reused=6, protected=[[2, 22]])
    kept = np.isin(np.arange(40), positions)
    assert ((one.reasons() != DROPPED) == kept).all()
    assert set(one.reasons()) <= {DROPPED, *REASONS}
    spans = one.as_json()["spans"]
    assert sum(span["end"] - span["start"] for span in spans) == positions.size


@pytest.mark.parametrize("scores", [None, [0.5], [0.5] * 3])
def test_scores_that_are_missing_or_of_other_chunks_are_not_shown(scores):
    """An older speculator sends none."""
    entry = explained([0, 7], 8, scores=scores).as_json()
    assert entry["unit_scores"] is None
    assert [span["score"] for span in entry["spans"]] == [None, None]
