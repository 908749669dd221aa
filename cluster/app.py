"""From a config to a Ray Serve application: two pools on distinct resources and a router before them."""

from typing import Any

from ray import serve
from ray.serve import Application

from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from cluster.config import ChannelConfig, DeploymentConfig, PoolConfig
from router.deployment import router_ingress

APP_NAME = "skim"

# A node states how many replicas of each pool it may hold; a replica takes one.
SPECULATOR_RESOURCE = "speculator_pool"
TARGET_RESOURCE = "target_pool"


def build_app(config: DeploymentConfig) -> Application:
    """The application of `config`, ready for `serve.run`."""
    channel = {**_channel(config.channel), "port": config.channel.port} if config.decode.method == "remote" else None
    speculator = _pool("speculator", SpeculatorActor, config.speculator, SPECULATOR_RESOURCE).bind(
        *_engine(config.speculator), channel
    )
    target = _pool("target", TargetActor, config.target, TARGET_RESOURCE).bind(
        *_engine(config.target, **_decoding(config))
    )
    router = serve.deployment(router_ingress(), name="router").options(
        num_replicas=config.router.replicas,
        max_ongoing_requests=config.router.max_ongoing_requests,
        ray_actor_options={"num_cpus": config.router.cpus},
    )
    return router.bind(
        speculator,
        target,
        model=config.target.model,
        served_model_name=config.served_model_name,
        options={**config.selection.model_dump(), "min_prompt_tokens": config.router.min_prompt_tokens},
        decode=config.decode.model_dump(),
        select_timeout_s=config.router.select_timeout_s,
        admission_timeout_s=config.router.admission_timeout_s,
        vllm_args=config.router.vllm_args,
    )


def _pool(name: str, actor: type, pool: PoolConfig, resource: str) -> serve.Deployment:
    return serve.deployment(actor, name=name).options(
        num_replicas=pool.replicas,
        max_ongoing_requests=pool.max_ongoing_requests,
        # A model that cannot start will not start the second time either.
        max_constructor_retry_count=1,
        ray_actor_options={
            "num_cpus": pool.cpus_per_replica,
            "num_gpus": pool.gpus_per_replica or 0,
            "resources": {resource: 1},
            "runtime_env": {"env_vars": pool.environment},
        },
    )


def _engine(pool: PoolConfig, **options: Any) -> tuple[str, str, int, dict[str, Any]]:
    """The actor's arguments; options: further ones of the engine."""
    return pool.engine, pool.model, pool.tensor_parallel, {**pool.engine_options, **options}


def _decoding(config: DeploymentConfig) -> dict[str, Any]:
    """How the target engine speculates; only vLLM's does."""
    if config.target.engine != "vllm":
        return {}
    decoding: dict[str, Any] = {"decode": config.decode.model_dump()}
    if config.decode.method == "remote":
        decoding["draft_channel"] = {**_channel(config.channel), "deadline_s": config.channel.deadline_ms / 1e3}
    return decoding


def _channel(channel: ChannelConfig) -> dict[str, Any]:
    """token and tls, as both ends of the draft channel take them."""
    tls = {"cert": channel.tls_cert, "key": channel.tls_key, "ca": channel.tls_ca} if channel.tls_ca else None
    return {"token": channel.token, "tls": tls}


def needed_resources(config: DeploymentConfig) -> dict[str, float]:
    """What a Ray cluster must offer for `config`: CPU, GPU and the two pool resources."""
    pools = (config.speculator, config.target)
    cpus = sum(p.replicas * p.cpus_per_replica for p in pools) + config.router.replicas * config.router.cpus
    needed: dict[str, Any] = {
        "CPU": cpus,
        "GPU": float(sum(p.replicas * (p.gpus_per_replica or 0) for p in pools)),
        SPECULATOR_RESOURCE: float(config.speculator.replicas),
        TARGET_RESOURCE: float(config.target.replicas),
    }
    return {name: amount for name, amount in needed.items() if amount}
