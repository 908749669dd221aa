import pytest

from router.decision.decaying_mean import DecayingMean


def test_a_value_loses_weight_with_each_later_one():
    mean = DecayingMean(0.5)
    assert mean.value == 0.0
    seen = []
    for value in (8.0, 2.0, 4.0):
        mean.add(value)
        seen.append(mean.value)
    assert seen == pytest.approx([8.0, (4 + 2) / 1.5, (2 + 1 + 4) / 1.75])
    assert mean.weight == 1.75


def test_a_value_may_stand_for_several():
    mean = DecayingMean(0.5)
    mean.add(30.0, 10)
    mean.add(5.0, 5)
    assert mean.value == (15 + 5) / (5 + 5)


def test_what_is_assumed_before_the_first_value_decays_too():
    mean = DecayingMean(0.5, 3.0, 4.0)
    assert mean.value == 0.75
    mean.add(0.0, 2)
    assert mean.value == 1.5 / 4
