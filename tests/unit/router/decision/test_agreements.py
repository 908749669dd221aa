"""Which kinds of prompts are skimmed, by how often their answers agreed with the dense model."""

import pytest

from router.decision.agreements import AGREES, ENOUGH, TRIAL, Agreements, shape_of


def measured(agreements, kind, *shares):
    return [agreements.measured(kind, share) for share in shares]


def test_an_answer_agrees_if_nearly_all_of_its_tokens_do():
    assert measured(Agreements(), "chat", 1.0, AGREES, AGREES - 0.01) == [True, True, False]


def test_a_kind_whose_answers_differ_is_skimmed_for_a_trial_only():
    agreements = Agreements()
    measured(agreements, "tools", *[0.5] * int(ENOUGH - 1))
    assert agreements.trusts("tools"), "too few are known"
    measured(agreements, "tools", *[0.5] * 5)
    asked = [agreements.trusts("tools") for _ in range(3 * TRIAL)]
    assert sum(asked) == 3
    assert agreements.trusts("chat"), "each kind has its own share"


def test_a_kind_that_agrees_again_is_trusted_again():
    agreements = Agreements()
    measured(agreements, "tools", *[0.0] * 20)
    assert not agreements.trusts("tools")
    measured(agreements, "tools", *[1.0] * 20)
    assert not agreements.trusts("tools"), "one bad series counts for a while"
    measured(agreements, "tools", *[1.0] * 20)
    assert agreements.trusts("tools")


def test_one_answer_in_ten_may_differ():
    agreements = Agreements()
    measured(agreements, "chat", *([1.0] * 9 + [0.2]) * 4)
    assert agreements.trusts("chat")


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
