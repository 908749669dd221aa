"""The settings of `benchmarks.scaling.scale`, and the deployment that they describe."""

from dataclasses import dataclass
from typing import Any

from cluster.config.schema import DeploymentConfig
from demo_models.ports import free_port

NAME = "bench"
"""The name of its model for clients."""
SLOTS = 2
"""Requests that a replica works on at a time."""
PROMPT_TOKENS = 1536

_KEEP_RATE = 0.2
_CACHED_PROMPTS = 16
"""Prompts that a replica's prefix cache holds, where documents are shared."""


@dataclass(frozen=True)
class ScaleSettings:
    """target, speculator: folders or hub names; only config and tokenizer are read. rate: requests per second during
    the step. step_s: length of the step in seconds. speculator_s, target_s: seconds that a request takes in each pool.

    documents: the requests of a part share so many documents, the
    engines have prefix caches, and the router chooses the mode; 0: nothing is shared, and every prompt is speculative.
    affinity: as `router.affinity`. routers: router replicas. speculators, targets: the largest number of replicas of
    each pool. fixed: the pools have that number from the start, without autoscaling.
    """

    target: str
    speculator: str
    rate: float = 2.0
    step_s: float = 75.0
    speculator_s: float = 2.0
    target_s: float = 1.0
    seed: int = 0
    documents: int = 0
    affinity: bool = True
    routers: int = 1
    speculators: int = 4
    targets: int = 3
    fixed: bool = False


def deployment(settings: ScaleSettings) -> DeploymentConfig:
    """Mock engines on a free port. Raises ValueError if a setting is out of range."""
    pool = {
        "engine": "mock",
        "cpus_per_replica": 0.1,
        "max_ongoing_requests": SLOTS,
        "drain_timeout_s": 10,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    sizes = {"speculator": settings.speculators, "target": settings.targets}
    costs = _costs(settings)
    pools: dict[str, Any] = {
        name: {
            **pool,
            "model": getattr(settings, name),
            "engine_options": costs[name],
            **({"replicas": size} if settings.fixed else {"autoscaling": _scaling(settings, size)}),
        }
        for name, size in sizes.items()
    }
    # Waiting is what is measured, so no request times out or is refused. vLLM's load generator takes no SSE comments.
    router: dict[str, Any] = {"port": free_port(), "cpus": 0.1, "select_timeout_s": 300, "admission_timeout_s": 300}
    router |= {"speculative_prefill": "auto" if settings.documents else "always", "affinity": settings.affinity}
    router |= {"max_wait_s": None, "max_ongoing_requests": 4096, "keep_alive_s": 0, "min_prompt_tokens": 1}
    router["replicas"] = settings.routers
    pools["target"]["engine_options"] = {**costs["target"], "enable_prompt_tokens_details": True}
    return DeploymentConfig.model_validate(
        {
            "served_model_name": NAME,
            "selection": {"keep_rate": _KEEP_RATE, "selector": "speculator"},
            "decode": {"method": "none"},
            "router": router,
            **pools,
        }
    )


def _costs(settings: ScaleSettings) -> dict[str, dict[str, float]]:
    """The mock engines' options by pool."""
    if not settings.documents:
        return {
            "speculator": {"latency_ms": 1e3 * settings.speculator_s},
            "target": {"prefill_ms": 1e3 * settings.target_s},
        }
    caches = {"cache_tokens": _CACHED_PROMPTS * PROMPT_TOKENS}
    kept_tokens = _KEEP_RATE * PROMPT_TOKENS
    return {
        "speculator": {"ms_per_token": 1e3 * settings.speculator_s / PROMPT_TOKENS, **caches},
        "target": {"prefill_ms_per_token": 1e3 * settings.target_s / kept_tokens, **caches},
    }


def _scaling(settings: ScaleSettings, most: int) -> dict[str, Any]:
    return {
        "max_replicas": most,
        "target_ongoing_requests": SLOTS,
        "upscale_delay_s": 2,
        "downscale_delay_s": 15,
        "look_back_period_s": 5,
        "metrics_interval_s": 1,
    }
