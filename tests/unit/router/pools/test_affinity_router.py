"""The request router of the pools, with replicas of this process in place of Serve's."""

import asyncio

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from router.pools import affinity_router as replica_choice
from router.pools.affinity_router import AffinityRouter, by_prefix, where
from router.pools.prefix_affinity import load_bound, ranked
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import until

POOL = DeploymentID("target", "skim")
IDS = [ReplicaID(name, POOL) for name in "abcd"]


class Replica:
    """Stands in for Serve's RunningReplica. running: its own count of requests."""

    def __init__(self, replica_id, room=10):
        self.replica_id, self.max_ongoing_requests, self.running = replica_id, room, 0

    async def get_queue_len(self, *, deadline_s):
        return self.running


@pytest.fixture
async def router(monkeypatch):
    monkeypatch.setattr(replica_choice, "ProcessMeter", LocalMeter)
    router = AffinityRouter(POOL, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    router.update_replicas([Replica(one) for one in IDS])
    await until(lambda: all(router.replica_queue_len_cache.get(one) == 0 for one in IDS))
    return router


def pending(wish, internal="http request"):
    return PendingRequest([], {}, RequestMetadata("r", internal, "generate", session_id=wish))


async def route(router, wish, **options):
    """Route one call as Serve's router does, and count it in the replica that takes it."""
    call = pending(wish, **options)
    replica = await asyncio.wait_for(router._choose_replica_for_request(call), 20)
    replica.running += 1
    router.on_send_request(replica.replica_id)
    router.on_request_routed(call, replica.replica_id, None)
    return replica.replica_id


def finish(router, replica_id):
    router._replicas[replica_id].running -= 1
    router.decrement_queue_len_cache(replica_id)


async def test_calls_with_one_key_go_to_one_replica(router):
    for key in ("one", "two", "three"):
        for _ in range(5):
            home = await route(router, by_prefix(key, "r"))
            assert home == ranked(key, IDS)[0]
            finish(router, home)
    recorded = router._meter.recorded["skim_router_affinity_total"]
    assert recorded == [(1, {"pool": "target", "outcome": "home"})] * 15


@pytest.mark.parametrize("key", ["", "one"])
async def test_a_call_whose_caller_leaves_before_it_is_accepted_has_its_place(router, key):
    """It may have begun a drafting session, which is ended where it is."""
    for call in range(8):  # a random replica would be the right one once in four times
        request = f"{key}-{call}"
        sent_to = await router._choose_replica_for_request(pending(by_prefix(key, request)))
        assert await route(router, where(request)) == sent_to.replica_id


async def test_a_popular_key_spreads_in_its_order_within_the_bound(router):
    taken = [await route(router, by_prefix("hot", f"r{i}")) for i in range(16)]
    order = ranked("hot", IDS)
    loads = [taken.count(one) for one in order]
    assert [taken.index(one) for one in order[:3]] == sorted(taken.index(one) for one in order[:3])
    assert loads == sorted(loads, reverse=True)
    assert max(loads) <= load_bound([4, 4, 4, 3])
    outcomes = [tags["outcome"] for _, tags in router._meter.recorded["skim_router_affinity_total"]]
    assert outcomes.count("home") == loads[0]
    assert outcomes.count("spilled") == 16 - loads[0]


async def test_a_full_home_is_passed_over(router):
    order = ranked("key", IDS)
    router._replicas[order[0]].running = 10
    router.on_new_queue_len_info(order[0], 10)
    assert await route(router, by_prefix("key", "r")) == order[1]


async def test_busy_and_full_replicas_are_offered_last(router):
    """Serve may know more than this router's latest counts, so they are offered all the same."""
    order = ranked("key", IDS)
    router.on_new_queue_len_info(order[0], 9)
    router._replicas[order[2]].max_ongoing_requests = 0
    ranks = await router.choose_replicas(list(router._replicas.values()), pending(by_prefix("key", "r")))
    assert [[one.replica_id for one in rank] for rank in ranks] == [[order[1]], [order[3]], [order[0], order[2]]]


async def test_a_dead_home_is_passed_over_and_a_new_one_found(router):
    order = ranked("key", IDS)
    router.on_replica_actor_died(order[0])
    assert await route(router, by_prefix("key", "r")) == order[1]
    router.update_replicas([Replica(one) for one in IDS])
    assert await route(router, by_prefix("key", "r")) == order[0]


async def test_a_call_waits_while_all_replicas_are_full(router):
    for replica in router._replicas.values():
        replica.running = 10
        router.on_new_queue_len_info(replica.replica_id, 10)
    waiting = asyncio.create_task(route(router, by_prefix("key", "r")))
    await until(lambda: router.num_routing_tasks_in_backoff)
    assert not waiting.done()
    free = IDS[2]
    router._replicas[free].running = 9
    assert await waiting == free


async def test_the_end_of_a_session_reaches_its_replica(router):
    for i in range(12):
        taken = await route(router, by_prefix("hot", f"r{i}"))
        assert await route(router, where(f"r{i}")) == taken
        finish(router, taken)
    unnamed = await route(router, by_prefix("", "plain"))
    assert await route(router, where("plain")) == unnamed


async def test_the_end_of_a_session_on_a_dead_replica_still_ends(router):
    taken = await route(router, by_prefix("key", "r"))
    router.on_replica_actor_died(taken)
    assert await route(router, where("r")) != taken
    assert await route(router, where("never seen")) in IDS


async def test_calls_without_a_key_take_the_less_busy_of_two(router):
    taken = [await route(router, "") for _ in range(40)]
    assert max(taken.count(one) for one in IDS) <= 14
    assert "skim_router_affinity_total" not in router._meter.recorded


async def test_the_prompts_of_one_http_request_each_get_their_replica(router):
    """They share the id by which Serve finds a call again."""
    keys = [f"prompt {i}" for i in range(6)]
    taken = await asyncio.gather(*(route(router, by_prefix(key, f"r{key}")) for key in keys))
    assert list(taken) == [ranked(key, IDS)[0] for key in keys]


async def test_serves_own_way_would_leave_such_a_prompt_without_a_replica(router, monkeypatch):
    """The negative control of the test above."""
    monkeypatch.delattr(AffinityRouter, "_fulfill_next_pending_request")
    calls = [asyncio.create_task(route(router, by_prefix(f"prompt {i}", f"r{i}"))) for i in range(6)]
    done, waiting = await asyncio.wait(calls, timeout=1)
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(done) < len(calls)
