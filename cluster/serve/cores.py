"""Binds the engines of a deployment to the cores of one CPU machine."""

import os

from cluster.config.schema import DeploymentConfig
from kv_transfer.environment import CORES


def on_own_cores(config: DeploymentConfig) -> DeploymentConfig:
    """The deployment with an equal share of the cores for each pool's engines, if vLLM would give them no more cores.

    By default, vLLM binds every CPU engine to all cores except the last (vllm.utils.ompmultiprocessing). On two cores,
    both pools' engines would share the first core, and the second would be idle. The choice is left to vLLM if there
    are more cores, if a pool sets its cores, or if a pool has several ranks.
    """
    pools = {name: pool for name, pool in config.pools.items() if pool.engine == "vllm" and not pool.gpus_per_replica}
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(len(pools), 1)
    taken = any(CORES in pool.env or pool.ranks > 1 for pool in pools.values()) or CORES in os.environ
    if len(pools) < 2 or taken or share < max(1, len(cores) - 1):
        return config
    bound = {}
    for index, (name, pool) in enumerate(pools.items()):
        own = cores[index * share : (index + 1) * share]
        bound[name] = pool.model_copy(update={"env": {**pool.env, CORES: ",".join(map(str, own))}})
    return config.with_pools({**config.pools, **bound})
