"""Builds the Ray Serve application of a config: the pools, each on its own Ray resource, and the router."""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from actors.pool_actor import PoolSettings
from actors.ray_hooks.serve import deployment_name, set_version
from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from cluster.config.load import config_from_settings
from cluster.config.pools import PoolConfig
from cluster.config.schema import ChannelConfig, DeploymentConfig, ObservabilityConfig
from cluster.serve.placement import placement_options
from kv_transfer.codec import MAX_MESSAGE_BYTES
from router.deployment import router_ingress
from router.options.settings import RouterConfig

APP_NAME = "skim"

REPLICA_CHOICE = "router.pools.affinity_router:AffinityRouter"
MAX_STARTS = 1_000_000
"""Failed starts in a row after which Serve would give up a pool for good: in effect never. Serve counts them in every
rolling update: with a small number, one start that the kernel kills for memory could end the pool. `retried_start`
waits up to a minute between them. `cluster.serve.status` ends the first start of a wrong configuration.
"""

SERVE_SWITCHES = {
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": str(MAX_STARTS),
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(MAX_MESSAGE_BYTES + 2**16),
}
"""Environment of every process of a Ray cluster that serves Skim; docs/architecture/deployment.md says what each does.

One event loop of a replica is enough: Serve calls it after its start, and a running engine computes elsewhere.
"""

SERVE_OPTIONS: dict[str, Any] = {
    "max_constructor_retry_count": MAX_STARTS,
    # Serve detects a dead replica only by its health check.
    "health_check_period_s": 2.0,
    # Three late checks in a row end a replica that hangs.
    "health_check_timeout_s": 10.0,
}
"""Serve's options of every deployment, so that none stays down."""

REFUSAL_SLOTS = 256
"""Requests that a router has beyond its `max_ongoing_requests` for the short time in which it refuses them. Serve's
proxy would hold them without an answer until the router has fields."""

SERVE_READS = {
    "host", "port", "replicas", "cpus", "resources", "drain_timeout_s", "tls_cert", "tls_key", "max_ongoing_requests",
}  # fmt: skip
"""Settings of the endpoint that a router does not read: a change of them starts no router anew."""

CHANNEL_TOKEN = "SKIM_CHANNEL_TOKEN"
"""Environment variable with the draft channel's token. It overrides the config and is never written to one."""


def serve_app(settings: Mapping[str, Any]) -> Application:
    """The application of a config given as plain settings. The `import_path` of a Serve config names this function.

    Model folders must be absolute, or hub names. Secrets come from the environment. Raises SkimError.
    """
    if token := os.environ.get(CHANNEL_TOKEN):
        settings = {**settings, "channel": {**settings.get("channel", {}), "token": token}}
    return build_app(config_from_settings(settings))


def build_app(config: DeploymentConfig) -> Application:
    """The application of `config`, ready for `serve.run`."""
    sizes = sizes_of(config)
    traces = config.observability.traces.model_dump() if config.observability.traces else None
    pools = {name: _pool(config, name, sizes[name], traces) for name in config.pools}
    router = serve.deployment(router_ingress(), name="router").options(
        **sizes["router"],
        **SERVE_OPTIONS,
        ray_actor_options={"num_cpus": config.router.cpus, "resources": config.router.resources},
    )
    return _bind(
        router,
        pools["speculator"],
        pools.get("target"),
        prefill=pools.get("prefill"),
        model=config.target.model,
        served_model_names=[config.served_model_name, *config.model_aliases],
        vllm_options=config.front_options,
        settings=config.router,
        selection=config.selection,
        decode=config.decode,
        traces=traces,
    )


def _pool(
    config: DeploymentConfig, name: str, size: Mapping[str, Any], traces: Mapping[str, Any] | None
) -> Application:
    pool = config.pools[name]
    deployment = serve.deployment(SpeculatorActor if name == "speculator" else TargetActor, name=name).options(
        **size,
        **SERVE_OPTIONS,
        request_router_config=RequestRouterConfig(request_router_class=REPLICA_CHOICE),
        **placement_options(name, pool),
    )
    shared = {field: getattr(pool, field) for field in PoolSettings.model_fields if field in PoolConfig.model_fields}
    settings = PoolSettings(**shared, options=engine_options(config, name), traces=traces)
    if name != "speculator":
        return _bind(deployment, settings)
    drafts = config.decode.method == "remote" and not config.router.select_only
    channel = {**_channel(config.channel), "port": config.channel.port} if drafts else None
    return _bind(deployment, settings, channel, reads_for=config.target.model)


def engine_options(config: DeploymentConfig, name: str) -> dict[str, Any]:
    """All options of a pool's engine: its own in the file, and what other settings ask of it."""
    pool = config.pools[name]
    options = dict(pool.options_of_engine)
    if pool.engine == "vllm" and pool.pipeline_parallel > 1:
        options["pipeline_parallel_size"] = pool.pipeline_parallel
    if pool.engine == "vllm" and pool.nodes_per_replica > 1:
        options["distributed_executor_backend"] = "ray"
    if "prefill" in config.pools and name != "speculator":
        options["kv_role"] = "prefill" if name == "prefill" else "decode"
    if name == "target" and pool.engine == "vllm":
        options["decode"] = config.decode.model_dump()
    if name == "target" and config.decode.method == "remote":  # a mock ends sessions by it
        options["draft_channel"] = {**_channel(config.channel), "deadline_s": config.channel.deadline_ms / 1e3}
    return options


def _channel(channel: ChannelConfig) -> dict[str, Any]:
    """Token and TLS files, in the form that both ends of the draft channel take."""
    tls = {"cert": channel.tls_cert, "key": channel.tls_key, "ca": channel.tls_ca} if channel.tls_ca else None
    return {"token": channel.token, "tls": tls}


def _bind(deployment: serve.Deployment, *args: Any, **kwargs: Any) -> Application:
    """The deployment with its arguments, and their hash as its version: Serve keeps replicas of the same version."""
    arguments = json.dumps([version("skim-serve"), args, kwargs], default=plain)
    set_version(deployment, hashlib.sha256(arguments.encode()).hexdigest())
    return deployment.bind(*args, **kwargs)


def plain(argument: Application | BaseModel) -> Any:
    """An argument of a deployment as plain data: what a replica of it reads."""
    if isinstance(argument, Application):
        return deployment_name(argument)
    return argument.model_dump(mode="json", exclude=SERVE_READS if isinstance(argument, RouterConfig) else None)


def sizes_of(config: DeploymentConfig) -> dict[str, dict[str, Any]]:
    """By deployment, the options that Serve changes without new replicas: their number, concurrency, draining."""
    router, headroom = config.router, {"speculator": 0.0, "target": 0.0}
    parts: dict[str, RouterConfig | PoolConfig] = {"router": router, **config.pools}
    sizes: dict[str, dict[str, Any]] = {
        name: {
            "num_replicas": part.replicas,
            "max_ongoing_requests": part.max_ongoing_requests,
            "graceful_shutdown_timeout_s": part.drain_timeout_s,
        }
        for name, part in parts.items()
    }
    sizes["router"]["max_ongoing_requests"] += REFUSAL_SLOTS
    for name, pool in config.pools.items():
        if (scaling := pool.autoscaling) is None:
            continue
        del sizes[name]["num_replicas"]
        options = sizes[name]["autoscaling_config"] = scaling.model_dump(exclude_none=True)
        # Whenever the options change, Ray resets a pool to `initial_replicas` (DeploymentAutoscalingState.register).
        # Without that option, a pool under load keeps its replicas.
        if pool.replicas != scaling.min_replicas:
            options["initial_replicas"] = pool.replicas
        # The requests with which Serve's autoscaler lets a pool, or a half of the target, grow to its `max_replicas`.
        most, half = scaling.max_replicas * scaling.target_ongoing_requests, "target" if name == "prefill" else name
        headroom[half] = max(headroom[half], most / router.replicas)
    # See RouterDeployment.reconfigure.
    sizes["router"]["user_config"] = {"max_ongoing_requests": router.max_ongoing_requests, "headroom": headroom}
    return sizes


def logging_options(observability: ObservabilityConfig) -> dict[str, Any]:
    """Fields of ray.serve.schema.LoggingConfig, for Serve's processes."""
    level, encoding = observability.log_level.upper(), observability.log_format.upper()
    return {"log_level": level, "encoding": encoding, "enable_access_log": False}
