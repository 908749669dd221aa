"""Which kinds of prompts are skimmed, by how often their answers agreed with the dense model."""

import pytest

from router.decision.conversations import shape_of
from router.decision.guard import ENOUGH, TRIAL, Agreements

TOOLS = "key", "tools"


def measured(agreements, *agree):
    for agrees in agree:
        agreements.measured(TOOLS, agrees=agrees)


def test_a_kind_whose_answers_differ_is_skimmed_for_a_trial_only():
    agreements = Agreements()
    measured(agreements, *[False] * int(ENOUGH - 1))
    assert agreements.trusts(TOOLS), "too few are known"
    measured(agreements, *[False] * 5)
    asked = [agreements.trusts(TOOLS) for _ in range(3 * TRIAL)]
    assert sum(asked) == 3
    for other in (("key", "chat"), ("other", "tools")):
        assert agreements.trusts(other), "each shape of a client has its own share"


def test_a_kind_that_agrees_again_is_trusted_again():
    agreements = Agreements()
    measured(agreements, *[False] * 20)
    assert not agreements.trusts(TOOLS)
    measured(agreements, *[True] * 20)
    assert not agreements.trusts(TOOLS), "one bad series counts for a while"
    measured(agreements, *[True] * 20)
    assert agreements.trusts(TOOLS)


def test_one_answer_in_ten_may_differ():
    agreements = Agreements()
    measured(agreements, *([True] * 9 + [False]) * 4)
    assert agreements.trusts(TOOLS)


@pytest.mark.parametrize(
    ("roles", "has_tools", "shape"),
    [
        (None, False, "text"),
        (["user"], False, "chat"),
        (["system", "user", "assistant", "user"], False, "turns"),
        (["user"], True, "tools"),
    ],
)
def test_the_kinds(roles, has_tools, shape):
    assert shape_of(roles, has_tools=has_tools) == shape
