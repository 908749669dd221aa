"""The expected time of an answer after its first token."""

import pytest

from router.admission.pool_load import AnswerTime


def test_it_follows_the_latest_answers_and_the_request_s_limit():
    answers = AnswerTime()
    assert answers.estimate(100) == 0
    for _ in range(200):
        answers.learn(50, 1000)
    assert answers.estimate(10_000) == pytest.approx(1000)
    assert answers.estimate(10) == pytest.approx(200)
    for _ in range(100):
        answers.learn(10, 400)
    assert answers.estimate(10_000) == pytest.approx(400, rel=0.1)


def test_answers_of_one_token_say_nothing_of_the_time_of_a_token():
    answers = AnswerTime()
    answers.learn(0, 0)
    assert answers.estimate(10) == 0


def test_about_the_latest_twenty_answers_count():
    answers = AnswerTime()
    answers.learn(0, 0.0)
    answers.learn(40, 40.0)
    for _ in range(19):
        answers.learn(20, 20.0)
    weights = [0.95**age for age in range(21)]
    mean = (20 * sum(weights[:19]) + 40 * weights[19]) / sum(weights)
    assert answers.estimate(1000) == pytest.approx(mean)
