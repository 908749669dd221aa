"""What a loaded router leaves out, in this order, before it refuses requests.

The load of a prompt is its predicted wait, divided by the longest wait that is allowed: `max_wait_s`, or what its
deadline leaves. From each of these shares on, one thing more is left out:

    CATCH_UP     no reads for later turns (`router.dispatch.catch_up`)
    KEEP         the smallest keep rate (`min_keep`), which shortens the target's prefill
    1            the request is refused (`router.admission`)

The keep rate is lowered only where the request leaves it to the deployment.
"""

from router.options.request import PrefillOptions

CATCH_UP, KEEP = 0.1, 0.75


def relative_load(wait_ms: float, longest_ms: float) -> float:
    """The load from 0 to 1. longest_ms: may be infinite (load 0) or negative (load 1 if there is a wait)."""
    return 0.0 if wait_ms <= 0 else min(1.0, wait_ms / longest_ms) if longest_ms > 0 else 1.0


def least_keep(options: PrefillOptions) -> PrefillOptions | None:
    """The options with the smallest keep rate that the deployment allows; None if they keep no more than that."""
    share = options.fixed_rate if options.fixed_rate is not None else options.largest_share
    if share <= options.min_keep:
        return None
    return options.model_copy(update={"keep_rate": options.min_keep, "coverage": None})
