"""From a config to a Ray Serve application: two pools on distinct resources and a router before them."""

from typing import Any

from ray import serve
from ray.serve import Application

from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from cluster.config import DeploymentConfig, PoolConfig
from router.deployment import router_ingress

APP_NAME = "skim"

# A node states how many replicas of each pool it may hold; a replica takes one.
SPECULATOR_RESOURCE = "speculator_pool"
TARGET_RESOURCE = "target_pool"


def build_app(config: DeploymentConfig) -> Application:
    """The application of `config`, ready for `serve.run`."""
    speculator = _pool(SpeculatorActor, "speculator", config.speculator, SPECULATOR_RESOURCE)
    target = _pool(TargetActor, "target", config.target, TARGET_RESOURCE)
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


def _pool(actor: type, name: str, pool: PoolConfig, resource: str) -> Application:
    deployment = serve.deployment(actor, name=name).options(
        num_replicas=pool.replicas,
        max_ongoing_requests=pool.max_ongoing_requests,
        # A model that cannot start will not start the second time either.
        max_constructor_retry_count=1,
        ray_actor_options={
            "num_cpus": pool.cpus_per_replica,
            "num_gpus": pool.gpus_per_replica,
            "resources": {resource: 1},
            "runtime_env": {"env_vars": dict(pool.env)},
        },
    )
    return deployment.bind(pool.engine, pool.model, pool.tensor_parallel, dict(pool.engine_options))


def needed_resources(config: DeploymentConfig) -> dict[str, float]:
    """What a Ray cluster must offer for `config`: CPU, GPU and the two pool resources."""
    pools = (config.speculator, config.target)
    cpus = sum(p.replicas * p.cpus_per_replica for p in pools) + config.router.replicas * config.router.cpus
    needed: dict[str, Any] = {
        "CPU": cpus,
        "GPU": float(sum(p.replicas * p.gpus_per_replica for p in pools)),
        SPECULATOR_RESOURCE: float(config.speculator.replicas),
        TARGET_RESOURCE: float(config.target.replicas),
    }
    return {name: amount for name, amount in needed.items() if amount}
