"""The day as traffic: rates, turns, what is known of each prompt."""

import numpy as np
import pytest

from benchmarks.scaling.simulated_day.traffic import BY_DAY, DAY_S, LENGTHS, NEW_TOKENS, PAUSE_S, RATES, daily

DAY = daily(qps=2.0, prompt=10_000, answer=300, seed=3)


def test_the_rate_follows_the_curve_up_to_the_peak():
    hours = np.bincount((DAY.at // 3600).astype(int))
    expected = np.array([(now + then) / 2 for now, then in zip(RATES, [*RATES[1:], RATES[0]], strict=True)])
    assert hours / 3600 == pytest.approx(2.0 * expected, rel=0.1)
    assert (np.diff(DAY.at) >= 0).all()
    assert DAY.at[-1] < DAY_S == DAY.seconds


def test_the_same_seed_gives_the_same_day():
    again, other = daily(2.0, 10_000, 300, seed=3), daily(2.0, 10_000, 300, seed=4)
    assert np.array_equal(DAY.at, again.at)
    assert np.array_equal(DAY.prompt, again.prompt)
    assert not np.array_equal(DAY.at, other.at[: DAY.at.size])


def test_a_share_of_the_requests_has_their_rate():
    part = daily(2.0, 10_000, 300, seed=3, share=0.25)
    assert part.at.size == pytest.approx(DAY.at.size / 4, rel=0.02)
    assert part.busiest()[0] == pytest.approx(DAY.busiest()[0], rel=0.1)


def test_a_later_turn_begins_with_its_earlier_turn_and_the_answer():
    later = DAY.before >= 0
    earlier = DAY.before[later]
    assert (DAY.at[later] - DAY.at[earlier]) == pytest.approx(DAY.pause[later])
    assert DAY.pause[later].mean() == pytest.approx(PAUSE_S, rel=0.05)
    assert np.array_equal(DAY.known[later], DAY.prompt[earlier] + 300)
    assert np.array_equal(DAY.prompt[later], DAY.known[later] + NEW_TOKENS)
    assert (DAY.known[~later] == 0).all()
    assert later.mean() == pytest.approx(0.875 / 1.875, abs=0.02)


def test_first_prompts_are_longer_at_night():
    first, hour = DAY.before < 0, DAY.at / 3600
    day, night = (DAY.prompt[first & part] for part in ((hour > 8) & (hour < 20), (hour < 8) | (hour > 20)))
    assert night.mean() > 1.3 * day.mean()
    shares = [(day == round(10_000 * length)).mean() for length in LENGTHS]
    assert shares == pytest.approx(BY_DAY, abs=0.02)


def test_the_busiest_window_has_most_tokens_and_its_long_prompts():
    qps, length, answer = DAY.busiest()
    window = slice(*np.searchsorted(DAY.at, (9 * 3600, 15 * 3600)))
    assert (DAY.prompt[window] <= length).mean() > 0.9
    assert qps * length == pytest.approx(DAY.prompt[window].sum() / 6 / 3600, rel=0.15)
    assert qps * answer == pytest.approx(DAY.answer[window].sum() / 6 / 3600, rel=0.15)
