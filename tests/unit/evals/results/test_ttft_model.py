"""The time of a case follows from lines through measured times."""

import pytest

from evals.results.ttft_model import Clock, Line
from evals.run.ask import Timing


def timed(selector, select_s, prefill_s, read, prompt):
    return Timing(selector, 0.2, select_s, prefill_s, read, prompt)


def test_the_selection_and_the_prefill_add_up():
    timings = [timed("dense", 0.0, n / 100, n, n) for n in (1000, 2000)]
    timings += [timed("speculator", n / 400, n / 5 / 100, n // 5, n) for n in (1000, 2000)]
    clock = Clock(timings)
    assert clock.first_token("dense", 1500, 1500) == pytest.approx(15.0)
    assert clock.first_token("speculator", 1500, 300) == pytest.approx(1500 / 400 + 3.0)
    assert clock.prefill.error == pytest.approx(0, abs=1e-9)


def test_prompts_of_about_one_length_have_their_mean():
    line = Line.through([1000, 1010], [1.0, 3.0])
    assert (line.at(500), line.at(1005)) == (2.0, 2.0)
    assert line.error > 0


def test_a_line_is_never_below_what_was_measured():
    assert Line.through([100, 1000], [1.0, 10.0]).at(1) == 1.0
