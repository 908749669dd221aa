"""What a loaded router leaves out, in this order, before it refuses requests.

The load of a prompt is its predicted wait, divided by the longest wait that is allowed: `max_wait_s`, or what its
deadline leaves. From each of these shares on, one thing more is left out:

    CATCH_UP     no reads for later turns (`router.dispatch.catch_up`)
    DRAFT_AHEAD  no drafts before the target asks for them
    DRAFTS       no drafts at all: the speculator then only selects
    KEEP         the smallest keep rate (`min_keep`), which shortens the target's prefill
    1            the request is refused (`router.admission`)

Drafts and keep rate are left out only where the request leaves them to the deployment.
"""

from kv_transfer.options import DecodeOptions
from router.options.request import PrefillOptions

CATCH_UP, DRAFT_AHEAD, DRAFTS, KEEP = 0.1, 0.25, 0.5, 0.75


def relative_load(wait_ms: float, longest_ms: float) -> float:
    """The load from 0 to 1. longest_ms: may be infinite (load 0) or negative (load 1 if there is a wait)."""
    return 0.0 if wait_ms <= 0 else min(1.0, wait_ms / longest_ms) if longest_ms > 0 else 1.0


def lighter_decoding(decode: DecodeOptions, load: float) -> tuple[DecodeOptions, str]:
    """The decoding options under this load, and what they leave out, in one word ("": nothing)."""
    if decode.method != "remote" or load < DRAFT_AHEAD:
        return decode, ""
    if load >= DRAFTS:
        return decode.model_copy(update={"method": "none"}), "drafts"
    if decode.draft_ahead == "off":
        return decode, ""
    return decode.model_copy(update={"draft_ahead": "off"}), "draft-ahead"


def least_keep(options: PrefillOptions) -> PrefillOptions | None:
    """The options with the smallest keep rate that the deployment allows; None if they keep no more than that."""
    share = options.fixed_rate if options.fixed_rate is not None else options.largest_share
    if share <= options.min_keep:
        return None
    return options.model_copy(update={"keep_rate": options.min_keep, "coverage": None})
