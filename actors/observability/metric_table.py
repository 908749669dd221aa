"""All metrics that Skim exports. The code records no others; dashboards and alerts use no others.

Names are `skim_<part>_<what>`. Ray exports them with the prefix `ray_`, the endpoint without. Times are seconds.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Metric:
    """tags: in addition to Ray's and Serve's (deployment, replica, node). buckets: upper bounds of a histogram.

    merge: how the endpoint makes one gauge of those of all replicas.
    """

    name: str
    kind: Kind
    text: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = "sum"


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

_ALL = (
    Metric("skim_router_requests_total", "counter", "prompts, by mode and reason", ("mode", "reason")),
    Metric("skim_router_prompt_tokens_total", "counter", "tokens of these prompts", ("mode",)),
    Metric("skim_router_kept_tokens_total", "counter", "tokens of these prompts that the target received", ("mode",)),
    Metric(
        "skim_router_cached_tokens_total",
        "counter",
        "tokens of these that the target found in its prefix cache",
        ("mode",),
    ),
    Metric(
        "skim_router_ttft_seconds",
        "histogram",
        "time to first token, by part: tokenize, queue, speculate, select, transfer, prefill, total",
        ("mode", "part"),
        _SECONDS,
    ),
    Metric("skim_router_keep_rate", "histogram", "kept share of the tokens of each speculative prompt", (), _SHARES),
    Metric("skim_router_coverage", "histogram", "kept share of the importance of each speculative prompt", (), _SHARES),
    Metric(
        "skim_router_forecast_ratio",
        "histogram",
        "estimated time to first token, divided by the real one, where the estimate chose the mode",
        ("mode",),
        (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0),
    ),
    Metric(
        "skim_router_read_speed",
        "gauge",
        "operations per second of a replica that reads a prompt, by pool and part: linear or attention",
        ("pool", "part"),
        merge="mean",
    ),
    Metric(
        "skim_router_read_fixed_seconds",
        "gauge",
        "seconds of such a read besides these operations",
        ("pool",),
        merge="mean",
    ),
    Metric(
        "skim_router_affinity_total",
        "counter",
        "calls that prefer the replicas of a prefix, by pool: home (the first choice took it) or spilled (another)",
        ("pool", "outcome"),
    ),
    Metric("skim_router_migrations_total", "counter", "requests moved to another target replica, by cause", ("cause",)),
    Metric("skim_router_replayed_tokens_total", "counter", "answer tokens that the next replica had to prefill"),
    Metric(
        "skim_router_deadlines_missed_total",
        "counter",
        "prompts stopped at their deadline, before their first token or while answering",
        ("answering",),
    ),
    Metric("skim_router_queued", "gauge", "prompts that wait in the router for a place in the pools"),
    Metric(
        "skim_router_refused_total",
        "counter",
        "requests refused before any work for them, by reason: full, wait or deadline",
        ("reason",),
    ),
    Metric(
        "skim_router_shed_total",
        "counter",
        "prompts of which less was kept because of the load (kind: keep)",
        ("kind",),
    ),
    Metric("skim_router_given_up_total", "counter", "requests that ended with an error after losing target replicas"),
    Metric(
        "skim_router_guard_total",
        "counter",
        "verdicts of the guard on prompts that would run speculative: compressed or dense, by reason",
        ("verdict", "reason"),
    ),
    Metric(
        "skim_router_audits_total",
        "counter",
        "greedy answers that were compared with the dense model: agrees or differs, by kind of prompt",
        ("outcome", "kind"),
    ),
    Metric(
        "skim_router_audit_agreement",
        "histogram",
        "share of such an answer's tokens that the dense model would have chosen, by kind of prompt",
        ("kind",),
        _SHARES,
    ),
    Metric(
        "skim_router_catch_ups_total",
        "counter",
        "catch-ups that ended: done, next-turn (it came first), dropped (no idle time), evicted, failed or stopped",
        ("outcome",),
    ),
    Metric("skim_router_catch_up_tokens_total", "counter", "tokens that the target read for them"),
    Metric(
        "skim_router_pool_replicas",
        "gauge",
        "replicas of a pool or the router: configured (wanted) and running (serving)",
        ("pool", "state"),
        merge="max",
    ),
    Metric("skim_speculator_rounds_total", "counter", "exchanges with a target that ask for drafts"),
    Metric("skim_speculator_draft_requests_total", "counter", "draft requests in these exchanges, one per session"),
    Metric("skim_speculator_drafts_total", "counter", "tokens drafted"),
    Metric("skim_speculator_opened_total", "counter", "sessions opened by a selection"),
    Metric(
        "skim_speculator_refused_total",
        "counter",
        "selections that got no session because the replica drafts for as many answers as it can",
    ),
    Metric("skim_speculator_evicted_total", "counter", "sessions closed because they were idle"),
    Metric("skim_speculator_lost_total", "counter", "draft requests for sessions that the replica does not have"),
    Metric("skim_speculator_sessions", "gauge", "current number of sessions"),
    Metric("skim_speculator_rollbacks_total", "counter", "drafting rounds after a rejected draft"),
    Metric("skim_speculator_rebuilt_total", "counter", "drafting rounds that had to prefill earlier tokens again"),
    Metric("skim_speculator_record_hits_total", "counter", "selections of prompts that begin like a known one"),
    Metric(
        "skim_speculator_records_lost_total", "counter", "records dropped because the engine's cache lost the prompt"
    ),
    Metric("skim_speculator_reused_tokens_total", "counter", "kept tokens that stand in an earlier kept prompt"),
    Metric("skim_speculator_late_tokens_total", "counter", "kept tokens of late units"),
    Metric(
        "skim_speculator_compactions_total", "counter", "fresh selections where more of an earlier one could be reused"
    ),
    Metric("skim_speculator_records", "gauge", "current number of records"),
    Metric("skim_target_rounds_total", "counter", "verifications"),
    Metric("skim_target_drafts_total", "counter", "drafts verified"),
    Metric("skim_target_accepted_total", "counter", "drafts accepted"),
    Metric(
        "skim_target_drafts_per_position_total",
        "counter",
        "drafts verified, by position in the verification",
        ("position",),
    ),
    Metric(
        "skim_target_accepted_per_position_total",
        "counter",
        "drafts accepted, by position in the verification",
        ("position",),
    ),
    Metric("skim_target_look_ahead_total", "counter", "look-ahead tokens used as drafts"),
    Metric("skim_target_chosen_total", "counter", "steps, by the chosen draft count", ("drafts",)),
    Metric(
        "skim_target_acceptance",
        "gauge",
        "acceptance rate of the first draft: moving average over all requests",
        merge="mean",
    ),
    Metric(
        "skim_target_cost_per_exchange",
        "gauge",
        "fixed cost of an exchange with a speculator, in plain decode steps",
        merge="mean",
    ),
    Metric(
        "skim_target_cost_per_draft",
        "gauge",
        "cost of one more draft for each request, in plain decode steps",
        merge="mean",
    ),
    Metric("skim_target_exchanges_total", "counter", "exchanges with a speculator"),
    Metric("skim_target_fallbacks_total", "counter", "steps without the requested drafts, by reason", ("reason",)),
    Metric("skim_target_channel_total", "counter", "events on the draft channel", ("event",)),
    Metric("skim_target_transfers_total", "counter", "completed transfers of KV blocks (split target)"),
    Metric("skim_target_transferred_bytes_total", "counter", "bytes of the completed transfers"),
    Metric(
        "skim_target_failed_transfers_total", "counter", "failed transfers of KV blocks; the prompt was prefilled again"
    ),
    *(
        Metric(f"skim_{pool}_failed_probe", "gauge", "1 if this replica failed its start probe, 0 if it passed")
        for pool in ("speculator", "target")
    ),
    *(
        Metric(f"skim_{pool}_{count}_total", "counter", f"requests {count} (mock engines only)")
        for pool in ("speculator", "target")
        for count in ("started", "aborted")
    ),
    *(
        Metric(f"skim_{pool}_running", "gauge", "requests that run now (mock engines only)")
        for pool in ("speculator", "target")
    ),
)

METRICS = {metric.name: metric for metric in _ALL}


def pool_metric(pool: str, count: str) -> Metric | None:
    """The metric of a pool's count, for example `skim_target_drafts_total` for `drafts` of the target; None if none."""
    name = f"skim_{pool}_{count}"
    return METRICS.get(f"{name}_total") or METRICS.get(name)
