"""The router's metrics of each prompt: mode and reason, kept tokens, time to first token, migrations."""

from actors.observability.metrics import Meter
from router.context import Outcome
from router.migration import Migration
from router.timeout_headers import TIMING_PARTS, TOTAL


def record_decision(meter: Meter, outcome: Outcome) -> None:
    """Record a prompt when its mode is decided. A beam search records each of its steps."""
    meter.record("skim_router_requests_total", 1, mode=outcome.mode, reason=outcome.reason)
    meter.record("skim_router_prompt_tokens_total", outcome.prompt_tokens, mode=outcome.mode)
    meter.record("skim_router_kept_tokens_total", outcome.kept_tokens, mode=outcome.mode)
    if outcome.mode == "speculative":
        meter.record("skim_router_keep_rate", outcome.keep_rate)
        meter.record("skim_router_coverage", outcome.coverage)


def record_forecast(meter: Meter, outcome: Outcome, ms: float) -> None:
    """Record how right the forecast was that chose the mode. ms: from the choice until the first token."""
    if outcome.estimate is not None:
        ratio = outcome.estimate.of(outcome.mode) / max(ms, 1e-3)
        meter.record("skim_router_forecast_ratio", ratio, mode=outcome.mode)


def record_first_token(meter: Meter, outcome: Outcome, total_ms: float) -> None:
    """Record the times of a prompt. total_ms: from the request's arrival until the target's first output."""
    for part, ms in {**outcome.timings, TOTAL: total_ms}.items():
        if part in TIMING_PARTS or part == TOTAL:
            meter.record("skim_router_ttft_seconds", ms / 1e3, mode=outcome.mode, part=part)


def record_migration(meter: Meter, migration: Migration) -> None:
    """Record that a request goes to another target replica."""
    meter.record("skim_router_migrations_total", 1, cause=migration.cause)
    meter.record("skim_router_replayed_tokens_total", migration.answered)
