"""The Ray resources of a replica: of one node, or of a placement group over several nodes."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

from cluster.config.pools import PoolConfig
from cluster.config.schema import DeploymentConfig
from skim_common.environment import CORES
from skim_common.errors import SkimError


def on_own_cores(config: DeploymentConfig) -> DeploymentConfig:
    """The deployment with an equal share of the cores for each pool's engines, if vLLM would give them no more cores.

    By default, vLLM binds every CPU engine to all cores except the last (vllm.utils.ompmultiprocessing). On two cores,
    both pools' engines would share the first one. The choice is vLLM's if there are more cores, if a pool sets its
    cores, or if a pool has several ranks.
    """
    pools = {name: pool for name, pool in config.pools.items() if pool.engine == "vllm" and not pool.gpus_per_replica}
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(len(pools), 1)
    taken = any(CORES in pool.env or pool.ranks > 1 for pool in pools.values()) or CORES in os.environ
    if len(pools) < 2 or taken or share < max(1, len(cores) - 1):
        return config
    bindings = (",".join(map(str, cores[start : start + share])) for start in range(0, len(cores), share))
    bound = {
        name: pool.model_copy(update={"env": {**pool.env, CORES: binding}})
        for (name, pool), binding in zip(pools.items(), bindings, strict=False)
    }
    return config.with_pools({**config.pools, **bound})


# A node offers one unit of a pool's resource for each replica that it may hold, and for each part of a replica that
# needs several nodes. A replica takes one unit on each of its nodes.
RESOURCES = {pool: f"{pool}_pool" for pool in ("speculator", "target", "prefill")}
ACCELERATOR = "accelerator_type:"
"""Prefix of the Ray resource that names a GPU type."""
ACCELERATOR_SHARE = 0.001
"""Amount of that resource that an actor takes, as in Ray itself."""
SMALLEST_SHARE = 1e-4
"""Ray rounds amounts of resources to this unit (ray._private.ray_constants.RESOURCE_UNIT_SCALING)."""

KEEP_ALL_GPUS = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Environment of a replica whose ranks are actors of their own: the GPUs are theirs, and Ray would hide them from it.

vLLM reads the properties of the GPU when it makes its configuration, in the replica's process.
"""


def placement_options(name: str, pool: PoolConfig) -> dict[str, Any]:
    """The options of ray.serve.deployment that say where replicas of the pool run.

    A replica on several nodes has a bundle for each rank: vLLM's Ray executor allows one GPU in a bundle. The ranks of
    a node divide one unit of the pool's resource, so that no node holds more, and the ranks of a stage stay together.
    """
    options: dict[str, Any] = {"num_cpus": pool.cpus_per_replica, "runtime_env": {"env_vars": pool.environment}}
    if pool.nodes_per_replica > 1:
        options["runtime_env"]["env_vars"] = {**KEEP_ALL_GPUS, **pool.environment}
        share = floor(pool.nodes_per_replica / pool.ranks / SMALLEST_SHARE) * SMALLEST_SHARE
        bundles = _with_the_actor(pool, {RESOURCES[name]: share, **_of_ranks(pool, 1)}, pool.ranks)
        labels = {"placement_group_bundle_label_selector": [pool.node_labels]} if pool.node_labels else {}
        group = {"placement_group_bundles": bundles, "placement_group_strategy": "PACK", **labels}
        return {"ray_actor_options": options, **group}
    options |= {"num_gpus": pool.gpus_per_replica or 0, "resources": {**pool.resources, RESOURCES[name]: 1}}
    if pool.accelerator_type:
        options["accelerator_type"] = pool.accelerator_type
    if pool.node_labels:
        options["label_selector"] = pool.node_labels
    return {"ray_actor_options": options}


def resources_per_node(config: DeploymentConfig) -> dict[str, list[dict[str, float]]]:
    """Ray resources of one replica on each of its nodes, by deployment."""
    taken = {"router": [_above_zero({"CPU": config.router.cpus, **config.router.resources})]}
    for name, pool in config.pools.items():
        part = {**_of_ranks(pool, pool.ranks // pool.nodes_per_replica), RESOURCES[name]: 1.0}
        if pool.nodes_per_replica == 1:
            part |= {**_of_ranks(pool, 1), "GPU": pool.gpus_per_replica or 0.0}
        taken[name] = _with_the_actor(pool, part, pool.nodes_per_replica)
    return taken


def needed_resources(config: DeploymentConfig, *, at_most: bool = False) -> dict[str, float]:
    """Ray resources that `config` needs at the start, or with `at_most` at its largest size."""
    replicas = {name: pool.most_replicas if at_most else pool.replicas for name, pool in config.pools.items()}
    needed = defaultdict[str, float](float)
    for name, parts in resources_per_node(config).items():
        for resource, amount in (item for part in parts for item in part.items()):
            needed[resource] += replicas.get(name, config.router.replicas) * amount
    return needed


def check_fit(config: DeploymentConfig, offered: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise SkimError if the deployment does not fit on a Ray cluster. Serve would wait for it silently.

    offered: the resources of the cluster. nodes: those of each living node.
    """
    for name, amount in needed_resources(config).items():
        has = offered.get(name, 0.0)
        if has < amount and name == "GPU":
            raise SkimError(
                f"the Ray cluster has {has:g} GPUs, but this deployment needs {amount:g}: use fewer replicas or less"
                " tensor parallelism, or let pools share a GPU: set gpus_per_replica of each to a fraction, and"
                " engine_options.gpu_memory_utilization to its share of the GPU's memory"
            )
        if has < amount:
            raise SkimError(
                f"the Ray cluster offers {has:g} of the resource {name}, but this deployment needs {amount:g}: start"
                f" nodes with it (for example ray start --resources '{{\"{name}\": {amount:g}}}')"
            )
    for name, parts in resources_per_node(config).items():
        suited = [node for node in nodes if _offers(node, parts[-1])]
        if len(suited) >= len(parts) and any(_offers(node, parts[0]) for node in suited):
            continue
        needs = ", ".join(f"{amount:g} {resource}" for resource, amount in parts[0].items())
        if len(parts) == 1:
            raise SkimError(
                f"no node of the Ray cluster has all the resources of one {name} replica ({needs}); a replica and its"
                " ranks need one node: start a larger node, lower the resources of the replica, or set"
                f" {name}.nodes_per_replica"
            )
        raise SkimError(
            f"one {name} replica needs {len(parts)} nodes of the Ray cluster, the first with {needs}, and"
            f" {len(suited)} {'has' if len(suited) == 1 else 'have'} the resources of a part: start more such nodes, or"
            f" change {name}.nodes_per_replica"
        )


def _offers(node: Mapping[str, float], needs: Mapping[str, float]) -> bool:
    return all(node.get(resource, 0.0) >= amount for resource, amount in needs.items())


def _with_the_actor(pool: PoolConfig, part: Mapping[str, float], parts: int) -> list[dict[str, float]]:
    """`parts` times `part`; the first one also holds the replica's actor with its cores and custom resources."""
    first = {"CPU": pool.cpus_per_replica, **pool.resources, **part}
    return [_above_zero(first), *(_above_zero(part) for _ in range(parts - 1))]


def _of_ranks(pool: PoolConfig, ranks: int) -> dict[str, float]:
    """What this number of ranks takes, each with one GPU if the pool has GPUs."""
    kind = {ACCELERATOR + pool.accelerator_type: ranks * ACCELERATOR_SHARE} if pool.accelerator_type else {}
    return {"GPU": float(ranks) if pool.gpus_per_replica else 0.0, **kind}


def _above_zero(amounts: Mapping[str, float]) -> dict[str, float]:
    return {resource: amount for resource, amount in amounts.items() if amount}
