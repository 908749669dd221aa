"""The rows that a session sends after each event."""

import numpy as np

from kv_transfer.arrays import Int32Array
from target_service.drafting.session import TargetSession


def ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def session() -> TargetSession:
    return TargetSession("here:1", "s")


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
