"""The call that waits for a pool on behalf of all requests."""

import asyncio
import gc
import weakref

from router.pools.availability import ColdStart
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import FOREVER, Handle, Reply, died


class Wish:
    told = 0

    def __call__(self):
        self.told += 1


def waking(**replies):
    answered = []
    return ColdStart({pool: Handle(*of_pool) for pool, of_pool in replies.items()}, answered.append), answered


async def test_all_wishes_are_told_once_when_all_pools_have_answered():
    wakes, answered = waking(target=[Reply(b""), Reply(b"")], prefill=[Reply(b""), Reply(b"")])
    first, second, later = Wish(), Wish(), Wish()
    for wish in (first, second):
        wakes.wake_up("target", "prefill", admitted=wish)
    await until(lambda: first.told and second.told)
    assert sorted(answered) == ["prefill", "target"]
    wakes.wake_up("target", "prefill", admitted=later)
    await until(lambda: later.told)
    assert (first.told, second.told, later.told) == (1, 1, 1)


async def test_a_pool_that_answers_is_up_and_one_that_does_not_keeps_the_wish_back():
    wakes, answered = waking(target=[Reply(b"")], prefill=[Reply(died())])
    wish = Wish()
    wakes.wake_up("target", "prefill", admitted=wish)
    await until(lambda: answered)
    await asyncio.sleep(0.01)
    assert (answered, wish.told) == (["target"], 0)


async def test_a_request_that_has_ended_is_not_held_by_the_call_that_waits():
    reply = Reply(FOREVER)
    wakes, _ = waking(target=[reply])
    wish = Wish()
    gone = weakref.ref(wish)
    wakes.wake_up("target", admitted=wish)
    await until(lambda: reply.waiting)
    wakes.forget(wish)
    del wish
    gc.collect()
    assert gone() is None
