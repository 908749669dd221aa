import pytest

from kv_transfer.draft_channel.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock) -> CircuitBreaker:
    return CircuitBreaker(failures=3, first_pause_s=1, longest_pause_s=5, clock=clock)


def test_opens_after_failures_in_a_row(breaker):
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert breaker.allows_call()
    assert breaker.failed()
    assert not breaker.allows_call()


def test_a_success_starts_the_count_again(breaker):
    breaker.failed()
    breaker.failed()
    breaker.succeeded()
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert breaker.allows_call()


def test_a_sure_failure_opens_at_once(breaker):
    assert breaker.failed(for_sure=True)
    assert not breaker.allows_call()


def test_each_failed_trial_doubles_the_pause(breaker, clock):
    breaker.failed(for_sure=True)
    pauses = []
    for _ in range(5):
        pauses.append(breaker.pause_s)
        clock.now += breaker.pause_s * 0.99
        assert not breaker.allows_call()
        clock.now += breaker.pause_s * 0.02
        assert breaker.allows_call()
        assert breaker.failed()
    assert pauses == [1, 2, 4, 5, 5]


def test_a_trial_that_succeeds_closes(breaker, clock):
    breaker.failed(for_sure=True)
    clock.now += 1
    breaker.failed()
    clock.now += 2
    breaker.succeeded()
    assert breaker.allows_call()
    assert breaker.pause_s == 0
    breaker.failed(for_sure=True)
    assert breaker.pause_s == 1
