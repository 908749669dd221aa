import numpy as np
import pytest

from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow, check_answers
from skim_common.errors import WireError

TWO = np.array([1, 2], np.int32)
Q = np.array([1, 2, 1, 2], np.int32), np.full(4, 0.5, np.float32)
REQUEST = DraftRequest(1, [DraftRow("a", 3, TWO, 2, 1.0, 2), DraftRow("told", 3, TWO, 0)])


@pytest.mark.parametrize(
    "reply",
    [
        DraftReply(1),
        DraftReply(1, [Draft("a", 5, TWO, *Q), Draft("told", 5, TWO[:0])]),
        DraftReply(1, [Draft("a", 5, TWO)]),
    ],
)
def test_answers(reply):
    check_answers(reply, REQUEST)


@pytest.mark.parametrize(
    "reply",
    [
        DraftReply(1, [Draft("b", 5, TWO)]),
        DraftReply(1, [Draft("a", 3, TWO)]),
        DraftReply(1, [Draft("a", 5, np.array([1, 2, 3], np.int32))]),
        DraftReply(1, [Draft("a", 5, TWO[:1], *Q)]),
        DraftReply(1, [Draft("told", 5, TWO)]),
    ],
)
def test_no_answers(reply):
    with pytest.raises(WireError):
        check_answers(reply, REQUEST)
