"""The order of the router's queue: by priority, then in fair shares for each key."""

import random

import pytest

from router.admission import ticket
from router.admission.ticket import AdmissionRequest, Ticket
from router.decision.choice import Work


class FairQueue(ticket.FairQueue):
    """Its tickets have names."""

    def __init__(self):
        super().__init__()
        self.names = {}

    def push(self, key, priority, cost, name):
        pushed = Ticket(AdmissionRequest(key, 1.0, priority), True, Work(target_ms=cost), 0.0, False, None)
        super().push(pushed)
        self.names[pushed] = name
        return pushed


def served(queue):
    """The names in the order of service."""
    order = []
    while (first := queue.first(lambda ticket: True)) is not None:
        queue.serve(first)
        order.append(queue.names[first])
    return order


def share(order, key, first):
    return sum(item == key for item in order[:first]) / first


def test_one_key_is_served_in_the_order_of_arrival():
    queue = FairQueue()
    for i in range(9):
        queue.push("a", 0, 1 + 7 * i % 5, i)
    assert served(queue) == list(range(9))


def test_a_flood_of_one_key_does_not_delay_another():
    queue = FairQueue()
    for _ in range(100):
        queue.push("flood", 0, 10, "flood")
    queue.push("calm", 0, 10, "calm")
    assert served(queue).index("calm") <= 1


def test_without_keys_the_flood_comes_first():
    """Negative control: it is the key that separates the two."""
    queue = FairQueue()
    for _ in range(100):
        queue.push("", 0, 10, "flood")
    queue.push("", 0, 10, "calm")
    assert served(queue).index("calm") == 100


def test_shares_are_of_work_and_not_of_requests():
    queue = FairQueue()
    for _ in range(300):
        queue.push("long", 0, 30, "long")
        queue.push("short", 0, 10, "short")
    assert share(served(queue), "long", 200) == pytest.approx(0.25, abs=0.02)


def test_weights_divide_the_work():
    queue = FairQueue()
    for _ in range(200):
        queue.push("gold", 0, 10 / 3, "gold")
        queue.push("other", 0, 10, "other")
    assert share(served(queue), "gold", 200) == pytest.approx(0.75, abs=0.02)


def test_priority_goes_before_shares():
    queue = FairQueue()
    for i, priority in enumerate((0, 5, -3, 0, -3)):
        queue.push("a", priority, 1, (priority, i))
    assert served(queue) == [(-3, 2), (-3, 4), (0, 0), (0, 3), (5, 1)]


def test_a_key_that_was_silent_has_no_claim_on_the_past():
    queue = FairQueue()
    for _ in range(50):
        queue.serve(queue.push("busy", 0, 10, "busy"))
    for _ in range(20):
        queue.push("new", 0, 10, "new")
        queue.push("busy", 0, 10, "busy")
    assert share(served(queue), "new", 20) == pytest.approx(0.5, abs=0.1)


def test_a_dropped_item_does_not_count_for_its_key():
    queue = FairQueue()
    entries = [queue.push("a", 0, 10, "a") for _ in range(5)]
    for entry in entries:
        queue.drop(entry)
    assert queue.next_order("a", 0) == queue.next_order("b", 0)


def test_the_next_order_is_that_of_the_next_push():
    queue, draw = FairQueue(), random.Random(3)
    for _ in range(50):
        key, priority = draw.choice("abc"), draw.randrange(2)
        expected = queue.next_order(key, priority)
        entry = queue.push(key, priority, draw.randrange(1, 50), key)
        assert entry.order[:2] == expected[:2]
        if draw.random() < 0.5:
            queue.serve(queue.first(lambda ticket: True))
    assert [entry.order for entry in queue] == sorted(entry.order for entry in queue)


def test_an_item_that_does_not_fit_is_overtaken():
    queue = FairQueue()
    for item in "abc":
        queue.push("k", 0, 1, item)
    assert queue.names[queue.first(lambda ticket: queue.names[ticket] != "a")] == "b"
    assert queue.first(lambda ticket: False) is None
