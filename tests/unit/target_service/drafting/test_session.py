"""The check of a drafter's reply, and the rows that a session sends after each event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kv_transfer.arrays import Int32Array
from kv_transfer.codec import decode, encode
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow, check_answers
from kv_transfer.messages import SessionHandle
from skim_common.errors import WireError
from target_service.drafting.session import Proposal, TargetSession, checked_proposal

VOCABULARY = 20


def ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def row(*, top_m: int = 0, drafts: int = 3) -> DraftRow:
    """A row with answer tokens 4 and 5 of six."""
    return DraftRow("s", 4, ids(7, 8), drafts, 1.0 if top_m else 0.0, top_m)


def draft(**changed: object) -> Draft:
    """Two drafts at the right position, each with its q."""
    fields = {
        "session": "s",
        "position": 6,
        "tokens": ids(3, 4),
        "q_ids": ids(3, 5, 4, 9),
        "q_probs": np.array([0.75, 0.25, 0.5, 0.5], np.float32),
    }
    return Draft(**{**fields, **changed})


def believed(said: Draft, asked: DraftRow) -> Proposal | None:
    """What a drafter's reply becomes on its way: None if the codec, `check_answers` or the target refuses it."""
    try:
        reply = decode(encode(DraftReply([said])), DraftReply)
        check_answers(reply, DraftRequest([asked]))
    except WireError:
        return None
    return checked_proposal(reply.drafts[0], VOCABULARY)


def test_a_right_draft() -> None:
    proposal = believed(draft(), row(top_m=2))
    assert proposal is not None
    assert proposal.tokens.tolist() == [3, 4]
    assert proposal.q_ids.tolist() == [[3, 5], [4, 9]]
    assert proposal.q_probs.tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_certain_drafts_have_no_q() -> None:
    certain = draft(q_ids=ids(), q_probs=np.empty(0, np.float32))
    for asked in (row(), row(top_m=2)):
        proposal = believed(certain, asked)
        assert proposal is not None
        assert proposal.q_ids.shape == proposal.q_probs.shape == (2, 0)


def test_more_than_was_asked_for_is_not_believed() -> None:
    assert believed(draft(), row(top_m=2, drafts=1)) is None
    assert believed(draft(), row()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": 5},
        {"tokens": ids(3, VOCABULARY)},
        {"tokens": ids(-1, 4)},
        {"tokens": ids(5, 5)},
        {"q_ids": ids(3, 5, 4)},
        {"q_ids": ids(3, 5, 4, VOCABULARY)},
        {"q_probs": np.array([1.0, 0.0, 0.5], np.float32)},
        {"q_probs": np.array([1.5, -0.5, 0.5, 0.5], np.float32)},
        {"q_probs": np.array([0.7, 0.2, 0.5, 0.5], np.float32)},
        {"q_probs": np.array([np.nan, 0.25, 0.5, 0.5], np.float32)},
        {"q_probs": np.array([0.0, 1.0, 0.5, 0.5], np.float32)},
        {"tokens": ids()},
    ],
)
def test_what_cannot_be_verified_is_not_believed(wrong: dict) -> None:
    assert believed(draft(**wrong), row(top_m=2)) is None


some_ids = npst.arrays(np.int32, st.integers(0, 6))
some_probs = npst.arrays(np.float32, st.integers(0, 6), elements=st.floats(width=32))


@given(some_ids, some_ids, some_probs, st.integers(0, 3), st.integers(0, 4))
def test_nothing_that_a_drafter_says_raises(
    tokens: Int32Array, q_ids: Int32Array, q_probs: np.ndarray, top_m: int, drafts: int
) -> None:
    said = draft(tokens=tokens, q_ids=q_ids, q_probs=q_probs)
    proposal = believed(said, row(top_m=top_m, drafts=drafts))
    if proposal is not None:
        assert proposal.tokens.size <= drafts
        assert ((proposal.tokens >= 0) & (proposal.tokens < VOCABULARY)).all()
        if proposal.q_ids.shape[1]:
            assert np.allclose(proposal.q_probs.sum(axis=1), 1, atol=2e-3)


def session() -> TargetSession:
    return TargetSession(SessionHandle("here:1", "s"))


def test_each_row_holds_the_new_tokens() -> None:
    told = session()
    first = told.ask(ids(7, 8), 3, 0.5, 4)
    assert (first.position, first.tokens.tolist()) == (0, [7, 8])
    assert (first.max_drafts, first.temperature, first.top_m) == (3, 0.5, 4)
    told.acknowledge(first, drafted=True)
    second = told.ask(ids(7, 8, 9), 3, 0.0, 0)
    assert (second.position, second.tokens.tolist()) == (2, [9])


def test_unacknowledged_tokens_are_sent_again() -> None:
    unheard = session()
    unheard.ask(ids(7, 8), 3, 0.0, 0)
    again = unheard.ask(ids(7, 8, 9), 3, 0.0, 0)
    assert (again.position, again.tokens.tolist()) == (0, [7, 8, 9])


def test_a_drafter_without_drafts_is_asked_less_and_less_often() -> None:
    """Its prompt is not read yet, or the session is gone. With the first drafts it is asked in each step again."""
    waiting, asked = session(), []
    for step in range(300):
        if not waiting.rests():
            asked.append(step)
            waiting.acknowledge(waiting.ask(ids(7), 3, 0.0, 0), drafted=False)
    assert np.diff(asked).tolist() == [2, 3, 5, 9, 17, 33, 65, 65, 65]
    waiting.acknowledge(waiting.ask(ids(7), 3, 0.0, 0), drafted=True)
    assert not any(waiting.rests() for _ in range(3))
