"""The router's metrics of each prompt: mode and reason, kept tokens, time to first token, migrations."""

import math
import time
from collections.abc import Mapping

from actors.observability.metrics import Meter
from router.decision.pool_time import Speeds
from router.dispatch.state import Outcome
from router.options.headers import TIMING_PARTS, TOTAL
from router.pools.migration import Migration


class ClientMetrics:
    """Is told what clients wait for. This one records nothing; `router.vllm_front.metrics` has one with vLLM's names.

    seconds: since the prompt arrived.
    """

    def began(self, prompt_tokens: int, seconds: float) -> None:
        """The target has made the first token for a prompt of so many tokens."""
        return

    def ended(self, prompt_tokens: int, seconds: float) -> None:
        """The answer to it is complete."""
        return


def since_arrival(prompt: Outcome, started: float) -> float:
    """Seconds. Each later step of a beam search is a prompt that arrived when it was decided. started: of the
    prompt, as in Prepared."""
    call = prompt.call
    return time.perf_counter() - (call.request.arrived if prompt in call.prompts else started)


def record_decision(meter: Meter, prompt: Outcome) -> None:
    """Record a prompt when its mode is decided. A beam search records each of its steps."""
    meter.record("skim_router_requests_total", 1, mode=prompt.mode, reason=prompt.reason)
    meter.record("skim_router_prompt_tokens_total", prompt.prompt_tokens, mode=prompt.mode)
    meter.record("skim_router_kept_tokens_total", prompt.kept_tokens, mode=prompt.mode)
    if prompt.mode == "speculative":
        meter.record("skim_router_keep_rate", prompt.keep_rate)
        meter.record("skim_router_coverage", prompt.coverage)


def record_forecast(meter: Meter, prompt: Outcome, ms: float) -> None:
    """Record how right the forecast was that chose the mode. ms: from the choice until the first token."""
    if prompt.estimate is not None:
        ratio = prompt.estimate.of(prompt.mode) / max(ms, 1e-3)
        meter.record("skim_router_forecast_ratio", ratio, mode=prompt.mode)


def record_speeds(meter: Meter, speeds: Mapping[str, Speeds]) -> None:
    """Record how fast the pools read. speeds: by pool."""
    for pool, found in speeds.items():
        meter.record("skim_router_read_fixed_seconds", found.fixed, pool=pool)
        for part, speed in (("linear", found.linear), ("attention", found.attention)):
            if math.isfinite(speed):
                meter.record("skim_router_read_speed", speed, pool=pool, part=part)


def record_first_token(meter: Meter, prompt: Outcome, cached_tokens: int) -> None:
    """Record the times of a prompt. cached_tokens: prompt tokens that the target found in its prefix cache."""
    meter.record("skim_router_cached_tokens_total", cached_tokens, mode=prompt.mode)
    for part, ms in prompt.timings.items():
        if part in TIMING_PARTS or part == TOTAL:
            meter.record("skim_router_ttft_seconds", ms / 1e3, mode=prompt.mode, part=part)


def record_migration(meter: Meter, migration: Migration) -> None:
    """Record that a request goes to another target replica."""
    meter.record("skim_router_migrations_total", 1, cause=migration.cause)
    meter.record("skim_router_replayed_tokens_total", migration.answered)
