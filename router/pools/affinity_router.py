"""Serve's request router for the pools: replicas by affinity within bounds of load (`router.pools.prefix_affinity`).

The caller's wish is in the handle's option `session_id`, which Serve carries to this class and nowhere else. The two
methods with a leading underscore are not public in Serve (docs/hooks.md).
"""

import random
from typing import Any

from cachetools import FIFOCache
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from actors.observability.metrics import Meter, ProcessMeter
from router.pools.prefix_affinity import preferred, ranked

PLACES = 65536
"""Latest calls whose replicas are remembered."""


def by_prefix(key: str, request_id: str) -> str:
    """The `session_id` of a call that prefers the replicas of `key`, if any. `where(request_id)` finds its replica."""
    return f"{key}/{request_id}"


def where(request_id: str) -> str:
    """The `session_id` of a call that goes to the replica that took the call `request_id`, or to any if it is gone."""
    return f"@/{request_id}"


class AffinityRouter(RequestRouter):
    """Calls with a key prefer the replicas of that key; calls without one take the less busy of two random replicas."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._meter: Meter = ProcessMeter()
        self._places: FIFOCache[str, ReplicaID] = FIFOCache(PLACES)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas; Serve takes the first replica that is not full, and waits and asks again if all are."""
        if not candidate_replicas:
            return []
        if pending_request is None:
            return [candidate_replicas]
        # Otherwise Serve asks again at once, in a busy loop.
        pending_request.routing_context.should_backoff = True
        key, _, request_id = pending_request.metadata.session_id.partition("/")
        if key == "@":
            placed = self.curr_replicas.get(self._places.get(request_id))
            return [[placed]] if placed is not None else [candidate_replicas]
        if key:
            return self._by_prefix(key, candidate_replicas)
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    def _by_prefix(self, key: str, replicas: list[RunningReplica]) -> list[list[RunningReplica]]:
        """One rank for each replica within the bound, in the order of the key, and one with all others."""
        # What a replica runs of all routers, by its last answer to this one; 0 if that is too old.
        loads = {one.replica_id: self.replica_queue_len_cache.get(one.replica_id) or 0 for one in replicas}
        most = {one.replica_id: one.max_ongoing_requests for one in replicas}
        current = self.curr_replicas
        within, beyond = ([current[one] for one in part if one in current] for part in preferred(key, loads, most))
        return [*([replica] for replica in within), *([beyond] if beyond else [])]

    async def _choose_replica_for_request(self, pending_request: PendingRequest, *, is_retry: bool = False) -> Any:
        """Remember the replica before it has accepted the call: the caller may leave meanwhile, and what the call
        leaves behind is then on this replica."""
        replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        key, named, request_id = pending_request.metadata.session_id.partition("/")
        if named and key != "@":
            self._places[request_id] = replica.replica_id
        return replica

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Serve calls this when a replica has accepted a call."""
        key, named, _ = pending_request.metadata.session_id.partition("/")
        if not named or key in ("", "@"):
            return
        home = ranked(key, list(self.curr_replicas))[:1] == [replica_id]
        outcome = "home" if home else "spilled"
        self._meter.record("skim_router_affinity_total", 1, pool=replica_id.deployment_id.name, outcome=outcome)

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        """Give the replica to the call that it was chosen for. Serve finds that call by an id that all calls of one
        HTTP request share: another prompt could get the replica, and this one would stay without one for good."""
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                self._cancel_routing_task_for_pending_request(pending)
                self._record_queue_wait_time(pending)
                pending.future.set_result(replica)
                self._remove_pending_request_from_indices(pending)
                return
