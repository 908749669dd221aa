"""The deadline of an exchange: a multiple of the average, within its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.draft_channel.client import SHORTEST, TIMES, ExchangeDeadline


def test_the_first_exchange_has_the_longest_deadline() -> None:
    assert ExchangeDeadline(0.25).seconds() == 0.25


def test_it_follows_what_exchanges_take() -> None:
    deadline = ExchangeDeadline(0.25)
    for _ in range(50):
        deadline.observe(0.01)
    assert abs(deadline.seconds() - TIMES * 0.01) < 1e-9
    for _ in range(50):
        deadline.observe(0.0001)
    assert deadline.seconds() == SHORTEST * 0.25


def test_misses_lengthen_it_up_to_the_longest() -> None:
    deadline, lasted = ExchangeDeadline(0.25), []
    deadline.observe(0.01)
    while not lasted or lasted[-1] < 0.25:
        lasted.append(deadline.seconds())
        deadline.observe(lasted[-1])
    assert lasted == sorted(lasted)
    assert len(lasted) <= 6


@given(st.floats(0.001, 5.0), st.lists(st.floats(0.0, 10.0), max_size=20))
def test_it_keeps_its_bounds(longest_s: float, took: list[float]) -> None:
    deadline = ExchangeDeadline(longest_s)
    for seconds in took:
        deadline.observe(seconds)
        assert SHORTEST * longest_s <= deadline.seconds() <= longest_s
