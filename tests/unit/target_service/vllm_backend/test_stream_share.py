"""Running streams keep their share of the steps, whatever a step that reads costs, and reads get the rest."""

from itertools import pairwise

import pytest

from target_service.vllm_backend.stream_share import FEWEST_TOKENS, MOST_OWED_S, MOST_READS, StreamAccount

ALONE_S = 0.01
CHEAP, DEAR = ALONE_S / 5000, ALONE_S / 20
"""Seconds that a token adds to a step: thousands of them cost what a step costs, or few."""


class Engine:
    """Steps of ALONE_S that read what the account allows; each token adds `per_token`.

    ahead: steps that are scheduled before the time of the last one is known. slowed: what each step takes longer while
    another engine reads, which ends when time is owed.
    """

    def __init__(self, share, per_token=CHEAP, ahead=0, slowed=1.0):
        self.account = StreamAccount(share)
        self.per_token, self.ahead, self.slowed = per_token, ahead, slowed
        self.steps, self._under_way = [], []

    def run(self, steps, waiting=10**9):
        for _ in range(steps):
            reads = min(self.account.tokens(), waiting)
            waiting -= reads
            self._under_way.append((reads, self.account.begun(reads)))
            if len(self._under_way) > self.ahead:
                self._end(*self._under_way.pop(0))
        return self

    def _end(self, reads, expected):
        slowed = self.slowed > 1 and self.account.owed <= 0 and bool(self.steps)
        seconds = (ALONE_S + reads * self.per_token) * (self.slowed if slowed else 1.0)
        self.account.ran(seconds, reads, slowed=slowed, expected=expected)
        self.steps.append((seconds, reads))

    @property
    def kept(self):
        """The share of their speed that streams kept, from the end of a debt to the end of another."""
        return len(self.steps) * ALONE_S / sum(seconds for seconds, _ in self.steps)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("per_token", [CHEAP, DEAR])
@pytest.mark.parametrize("ahead", [0, 1])
def test_streams_keep_their_share_and_reads_get_nearly_all_of_the_rest(share, per_token, ahead):
    engine = Engine(share, per_token, ahead).run(3000)
    assert share - 0.01 <= engine.kept <= share + 0.04


@pytest.mark.parametrize("per_token", [CHEAP, DEAR])
def test_an_account_that_is_told_of_no_time_breaks_the_promise(per_token):
    engine = Engine(0.9, per_token)
    engine.account.ran = lambda seconds, reads, **told: StreamAccount.ran(engine.account, ALONE_S, 0, **told)
    engine.account.tokens = lambda: 2048
    assert engine.run(100).kept < 0.75


def test_no_period_loses_more_than_one_step_that_reads():
    engine = Engine(0.7, DEAR).run(2000)
    longest = max(seconds for seconds, _ in engine.steps)
    for first in range(0, 1900, 7):
        taken = sum(seconds for seconds, _ in engine.steps[first : first + 100])
        assert taken <= 100 * ALONE_S / 0.7 + longest


def test_a_long_time_without_reads_is_no_credit():
    engine = Engine(0.5, DEAR).run(1000, waiting=0)
    before = len(engine.steps)
    engine.run(3)
    assert [reads > 0 for _, reads in engine.steps[before:]] == [True, False, False]


def test_a_cheap_token_makes_larger_steps_and_a_dear_one_the_smallest():
    cheap, dear = (max(reads for _, reads in Engine(0.5, cost).run(100).steps) for cost in (CHEAP, DEAR))
    assert cheap > 10 * FEWEST_TOKENS
    assert dear == FEWEST_TOKENS


def test_the_first_step_with_streams_only_decodes_so_that_its_time_is_known():
    account = StreamAccount(0.5)
    assert account.tokens() == 0
    account.ran(ALONE_S, 0, slowed=False, expected=account.begun(0))
    assert account.tokens() == FEWEST_TOKENS


def test_other_streams_are_measured_anew():
    account = StreamAccount(0.5)
    for seconds in (ALONE_S, 10 * ALONE_S):
        account.ran(seconds, 0, slowed=False, expected=account.begun(0))
        account.ran(seconds + 1000 * CHEAP, 1000, slowed=False, expected=account.begun(1000))
        account.ran(seconds, 0, slowed=False, expected=account.begun(0))
        assert account.tokens() == pytest.approx(2 * seconds / CHEAP, rel=0.3)
        expected = account.begun(1000)
        account.rest()
        account.ran(99.0, 1000, slowed=False, expected=expected)  # was under way
        assert account.tokens() == 0


def test_steps_that_all_read_are_interrupted_to_measure_one_that_does_not():
    engine = Engine(0.2).run(10 * MOST_READS)
    alone = [index for index, (_, reads) in enumerate(engine.steps) if not reads]
    assert max(after - before for before, after in pairwise(alone)) <= MOST_READS + 1


def test_with_a_share_of_one_reads_wait_until_no_stream_runs():
    engine = Engine(1.0, DEAR).run(1000)
    assert sum(reads > 0 for _, reads in engine.steps) == 1, "what it cost can never be paid back"
    engine.account.rest()
    assert engine.run(2).steps[-1][1] == FEWEST_TOKENS


def test_a_step_that_takes_long_for_another_reason_is_not_paid_back_for_minutes():
    account = StreamAccount(0.9)
    account.ran(ALONE_S, 0, slowed=False, expected=account.begun(0))
    account.ran(60.0, FEWEST_TOKENS, slowed=False, expected=account.begun(FEWEST_TOKENS))
    assert account.owed == MOST_OWED_S


def test_what_another_engine_costs_the_streams_is_owed_too():
    engine = Engine(0.8, slowed=2.0).run(2000, waiting=0)
    assert 0.78 <= engine.kept <= 0.86


def test_a_step_without_reads_that_takes_longer_is_the_speed_of_the_streams():
    account = StreamAccount(0.9)
    for seconds in [ALONE_S] * 20 + [3 * ALONE_S] * 200:
        account.ran(seconds, 0, slowed=False, expected=account.begun(0))
    assert account.owed <= 0
    assert account.tokens() == FEWEST_TOKENS
