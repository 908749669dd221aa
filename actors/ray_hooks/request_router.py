"""The names of Serve's request router that `router.pools.affinity_router.AffinityRouter` overrides or uses.

It is a subclass of the public `ray.serve.request_router.RequestRouter`; these methods are not public.
"""

from skim_common.symbols import Hook

_ROUTER = "ray.serve._private.request_router.request_router"

HOOK = Hook(
    what="choice of a replica",
    how=(
        "Ray: a subclass of the public `RequestRouter` overrides `_choose_replica_for_request` and"
        " `_fulfill_next_pending_request`; the option `session_id` carries key and request"
    ),
    until=(
        "two prompts of one HTTP request get their own replicas, and Serve tells of a choice before the replica accepts"
    ),
    where=("router/pools/affinity_router.py", "actors/ray_hooks/request_router.py"),
    symbols=(
        (_ROUTER, "RequestRouter._choose_replica_for_request", "self pending_request is_retry"),
        (_ROUTER, "RequestRouter._fulfill_next_pending_request", "self replica request_metadata"),
        (_ROUTER, "RequestRouter._pending_requests_to_fulfill", ""),
        (_ROUTER, "RequestRouter._cancel_routing_task_for_pending_request", "self pending_request"),
        (_ROUTER, "RequestRouter._record_queue_wait_time", "self pending_request"),
        (_ROUTER, "RequestRouter._remove_pending_request_from_indices", "self pending_request"),
        ("ray.serve._private.request_router.common", "RequestRoutingContext.should_backoff", ""),
        ("ray.serve._private.common", "RequestMetadata.session_id", ""),
    ),
)
