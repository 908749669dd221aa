"""An answer that rejects more drafts than usual is noticed, and no other."""

import pytest

from speculator_service.acceptance import ENOUGH_ANSWERS, ENOUGH_DRAFTS, LOW, MAX_ANSWERS, MOST, STEP, Acceptances


@pytest.fixture
def usual():
    """Answers of which 80 % of the drafts were accepted."""
    acceptances = Acceptances()
    for number in range(ENOUGH_ANSWERS):
        acceptances.ended(f"usual-{number}", 100, 80)
    return acceptances


@pytest.mark.parametrize(("accepted", "low"), [(80, False), (57, False), (55, True), (0, True)])
def test_an_answer_is_low_if_it_is_clearly_below_the_mean(usual, accepted, low):
    assert 0.55 < 0.8 * LOW < 0.57
    usual.ended("this", 100, accepted)
    assert usual.was_low("this") == low
    assert not usual.was_low("usual-0")


def test_few_drafts_say_nothing(usual):
    usual.ended("this", ENOUGH_DRAFTS - 1, 0)
    assert not usual.was_low("this")
    # They do not count for the mean either.
    for _ in range(100):
        usual.ended("short", ENOUGH_DRAFTS - 1, 0)
    usual.ended("this", 100, 50)
    assert usual.was_low("this")


def test_a_few_answers_do_not_say_what_is_usual():
    acceptances = Acceptances()
    for number in range(ENOUGH_ANSWERS - 1):
        acceptances.ended(str(number), 100, 80)
    acceptances.ended("this", 100, 0)
    assert not acceptances.was_low("this")
    acceptances.ended("next", 100, 0)
    assert acceptances.was_low("next")


def test_what_is_usual_follows_the_answers(usual):
    for number in range(100):
        usual.ended(f"later-{number}", 100, 40)
    assert usual.was_low("later-0")
    usual.ended("this", 100, 40)
    assert not usual.was_low("this")


def test_the_coverage_rises_by_a_step_and_has_a_limit(usual):
    usual.ended("this", 100, 0)
    assert usual.raised("this", 0.0) == STEP
    assert usual.raised("this", MOST - STEP / 2) == MOST
    assert usual.raised("usual-0", 0.2) == 0.2
    assert usual.raised("", 0.0) == 0.0


def test_old_answers_are_forgotten(usual):
    usual.ended("this", 100, 0)
    for number in range(2 * MAX_ANSWERS):
        usual.ended(str(number), 100, 100 * (number % 2))
    assert not usual.was_low("this")
