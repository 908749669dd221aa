"""All metrics that Skim exports. The code records no others; dashboards and alerts use no others.

Names are `skim_<part>_<what>`; those of counters end in `_total`. Times are seconds.
"""

from dataclasses import dataclass
from typing import Literal

Merge = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Metric:
    """tags: besides the replica. buckets: upper bounds of a histogram. merge: how the endpoint makes one gauge of those
    of all replicas.
    """

    name: str
    text: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = "sum"

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_RATIOS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

_ALL = (
    Metric("skim_router_requests_total", "prompts, by mode and reason", ("mode", "reason")),
    Metric("skim_router_prompt_tokens_total", "tokens of these prompts", ("mode",)),
    Metric("skim_router_kept_tokens_total", "tokens of these prompts that the target received", ("mode",)),
    Metric("skim_router_cached_tokens_total", "tokens of these that the target found in its prefix cache", ("mode",)),
    Metric("skim_router_ttft_seconds", "time to first token, by part", ("mode", "part"), _SECONDS),
    Metric("skim_router_selections_total", "speculative prompts, by what scored them", ("selector",)),
    Metric("skim_router_keep_rate", "kept share of the tokens of each speculative prompt", (), _SHARES),
    Metric("skim_router_coverage", "kept share of the importance of each speculative prompt", (), _SHARES),
    Metric("skim_router_forecast_ratio", "time to first token: estimated divided by real", ("mode",), _RATIOS),
    Metric("skim_router_affinity_total", "calls that prefer the replicas of a prefix", ("pool", "outcome")),
    Metric("skim_router_migrations_total", "requests moved to another target replica, by cause", ("cause",)),
    Metric("skim_router_replayed_tokens_total", "answer tokens that the next replica had to prefill"),
    Metric("skim_router_given_up_total", "requests that ended with an error after losing target replicas"),
    Metric("skim_router_deadlines_missed_total", "prompts stopped at their deadline", ("answering",)),
    Metric("skim_router_queued", "prompts that wait in the router for a place in the pools"),
    Metric("skim_router_refused_total", "requests refused before any work for them, by reason", ("reason",)),
    Metric("skim_router_shed_total", "prompts of which less was kept because of the load", ("kind",)),
    Metric("skim_router_guard_total", "verdicts on prompts that would run speculative", ("verdict", "reason")),
    Metric("skim_router_audits_total", "answers that were compared with the dense model", ("outcome", "kind")),
    Metric("skim_router_audit_agreement", "share of its tokens that the dense model would choose", ("kind",), _SHARES),
    Metric("skim_router_catch_ups_total", "catch-ups that ended, by outcome", ("outcome",)),
    Metric("skim_router_catch_up_tokens_total", "tokens that the target read for them"),
    Metric("skim_router_pool_replicas", "replicas of a pool or the router, by state", ("pool", "state"), merge="max"),
    Metric("skim_speculator_rounds_total", "exchanges with a target that ask for drafts"),
    Metric("skim_speculator_draft_requests_total", "draft requests in these exchanges, one per session"),
    Metric("skim_speculator_drafts_total", "tokens drafted"),
    Metric("skim_speculator_opened_total", "sessions opened by a selection"),
    Metric("skim_speculator_refused_total", "selections that got no session because the replica drafts for enough"),
    Metric("skim_speculator_evicted_total", "sessions closed because they were idle"),
    Metric("skim_speculator_lost_total", "draft requests for sessions that the replica does not have"),
    Metric("skim_speculator_sessions", "current number of sessions"),
    Metric("skim_speculator_rollbacks_total", "drafting rounds after a rejected draft"),
    Metric("skim_speculator_rebuilt_total", "drafting rounds that had to prefill earlier tokens again"),
    Metric("skim_speculator_record_hits_total", "selections of prompts that begin like a known one"),
    Metric("skim_speculator_records_lost_total", "records dropped because the engine's cache lost the prompt"),
    Metric("skim_speculator_reused_tokens_total", "kept tokens that stand in an earlier kept prompt"),
    Metric("skim_speculator_late_tokens_total", "kept tokens of late units"),
    Metric("skim_speculator_compactions_total", "fresh selections where more of an earlier one could be reused"),
    Metric("skim_speculator_records", "current number of records"),
    Metric("skim_speculator_failed_probe", "replicas that failed their start probe"),
    Metric("skim_target_rounds_total", "verifications"),
    Metric("skim_target_drafts_total", "drafts verified"),
    Metric("skim_target_accepted_total", "drafts accepted"),
    Metric("skim_target_drafts_per_position_total", "drafts verified, by position", ("position",)),
    Metric("skim_target_accepted_per_position_total", "drafts accepted, by position", ("position",)),
    Metric("skim_target_look_ahead_total", "look-ahead tokens used as drafts"),
    Metric("skim_target_chosen_total", "steps, by the chosen draft count", ("drafts",)),
    Metric("skim_target_acceptance", "acceptance rate of the first draft, a moving average", merge="mean"),
    Metric("skim_target_cost_per_exchange", "fixed cost of an exchange, in plain decode steps", merge="mean"),
    Metric("skim_target_cost_per_draft", "cost of one more draft per request, in plain decode steps", merge="mean"),
    Metric("skim_target_exchanges_total", "exchanges with a speculator"),
    Metric("skim_target_fallbacks_total", "steps without the requested drafts, by reason", ("reason",)),
    Metric("skim_target_channel_total", "events on the draft channel", ("event",)),
    Metric("skim_target_transfers_total", "completed transfers of KV blocks (split target)"),
    Metric("skim_target_transferred_bytes_total", "bytes of the completed transfers"),
    Metric("skim_target_failed_transfers_total", "failed transfers of KV blocks; the prompt was prefilled again"),
    Metric("skim_target_failed_probe", "replicas that failed their start probe"),
)

METRICS = {metric.name: metric for metric in _ALL}


def pool_metric(pool: str, count: str) -> Metric | None:
    """The metric of a pool's count, for example `skim_target_drafts_total` for `drafts` of the target; None if none."""
    name = f"skim_{pool}_{count}"
    return METRICS.get(f"{name}_total") or METRICS.get(name)
