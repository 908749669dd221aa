"""Every metric that Skim exports, by name: what the code may record, and what dashboards and alerts may ask for.

Names are `skim_<part>_<what>`; Ray puts `ray_` before them when it exports them. Times are seconds.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

EXPORT_PREFIX = "ray_"
"""What Ray's exporter (ray._private.telemetry) puts before every name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """tags: besides those of Ray and Serve, which tell deployment, replica and node. buckets: of a histogram."""

    name: str
    kind: Kind
    text: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

_ALL = (
    Metric("skim_router_requests_total", "counter", "prompts by how they ran, and why", ("mode", "reason")),
    Metric("skim_router_prompt_tokens_total", "counter", "tokens of those prompts", ("mode",)),
    Metric("skim_router_kept_tokens_total", "counter", "tokens of them that the target was given", ("mode",)),
    Metric(
        "skim_router_ttft_seconds",
        "histogram",
        "time to first token by part: tokenize, queue, speculate, select, transfer, prefill, and their total",
        ("mode", "part"),
        _SECONDS,
    ),
    Metric("skim_router_keep_rate", "histogram", "kept share of each speculative prompt", (), _SHARES),
    Metric("skim_router_coverage", "histogram", "share of the importance that was kept", (), _SHARES),
    Metric("skim_speculator_rounds_total", "counter", "requests for drafts, of one target step each"),
    Metric("skim_speculator_draft_requests_total", "counter", "sessions that drafts were asked of in them"),
    Metric("skim_speculator_drafts_total", "counter", "tokens drafted"),
    Metric("skim_speculator_ahead_hits_total", "counter", "draft requests that found their drafts ready or under way"),
    Metric("skim_speculator_ahead_misses_total", "counter", "draft requests whose work ahead was for another answer"),
    Metric("skim_speculator_branches_drafted_total", "counter", "branches drafted ahead"),
    Metric("skim_speculator_opened_total", "counter", "sessions opened by a selection"),
    Metric("skim_speculator_restored_total", "counter", "sessions opened from a target's copy of them"),
    Metric("skim_speculator_evicted_total", "counter", "sessions closed for their age or number"),
    Metric("skim_speculator_lost_total", "counter", "draft requests for sessions that are not here"),
    Metric("skim_speculator_sessions", "gauge", "sessions now"),
    Metric("skim_speculator_rollbacks_total", "counter", "rounds after a rejected draft"),
    Metric("skim_speculator_rebuilt_total", "counter", "rounds that had to read again what was read before"),
    Metric("skim_target_rounds_total", "counter", "verifications"),
    Metric("skim_target_drafts_total", "counter", "tokens verified"),
    Metric("skim_target_accepted_total", "counter", "tokens accepted of them"),
    Metric("skim_target_drafts_per_position_total", "counter", "drafts by position in their round", ("position",)),
    Metric("skim_target_accepted_per_position_total", "counter", "accepted drafts by position", ("position",)),
    Metric("skim_target_look_ahead_total", "counter", "look-ahead tokens of the selection that served as drafts"),
    Metric("skim_target_chosen_total", "counter", "steps by the number of drafts asked for", ("drafts",)),
    Metric("skim_target_acceptance", "gauge", "moving average of the acceptance, over all requests"),
    Metric("skim_target_cost_per_draft", "gauge", "cost of one more draft, in plain decoding steps"),
    Metric("skim_target_exchanges_total", "counter", "exchanges with a speculator"),
    Metric("skim_target_restored_total", "counter", "sessions sent whole, to a speculator that lost them"),
    Metric("skim_target_resumed_total", "counter", "sessions that drafted again after an interruption"),
    Metric("skim_target_moved_total", "counter", "sessions that went to another speculator"),
    Metric("skim_target_ahead_total", "counter", "drafts that were ready when asked for"),
    Metric("skim_target_fallbacks_total", "counter", "steps without the drafts they asked for, and why", ("reason",)),
    Metric("skim_target_channel_total", "counter", "what happened on the draft channel", ("event",)),
    Metric("skim_target_transfers_total", "counter", "transfers of KV blocks that arrived (split target)"),
    Metric("skim_target_transferred_bytes_total", "counter", "their bytes"),
    Metric("skim_target_failed_transfers_total", "counter", "transfers that failed; the prompt was read again"),
    *(
        Metric(f"skim_{pool}_{count}_total", "counter", f"requests {count} (mock engines only)")
        for pool in ("speculator", "target")
        for count in ("started", "aborted")
    ),
    *(
        Metric(f"skim_{pool}_running", "gauge", "requests running now (mock engines only)")
        for pool in ("speculator", "target")
    ),
)

METRICS = {metric.name: metric for metric in _ALL}


def pool_metric(pool: str, count: str) -> Metric | None:
    """The metric of a pool's count: `drafts` of the target is `skim_target_drafts_total`; None for no metric."""
    name = f"skim_{pool}_{count}"
    return METRICS.get(f"{name}_total") or METRICS.get(name)
