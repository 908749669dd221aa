"""Which cores of one CPU machine the engines of a deployment run on."""

import os

from cluster.config.schema import DeploymentConfig
from kv_transfer.environment import CORES


def on_own_cores(config: DeploymentConfig) -> DeploymentConfig:
    """Each pool's engines on an equal share of the cores, where vLLM would leave them no more than that.

    By itself vLLM binds every engine on CPU to all cores but the last (vllm.utils.ompmultiprocessing), so that on two
    cores both pools' engines share the first, and the second is idle. On more cores, or where a pool names its cores or
    has several ranks, vLLM decides.
    """
    pools = {name: pool for name, pool in config.pools.items() if pool.engine == "vllm" and not pool.gpus_per_replica}
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(len(pools), 1)
    taken = any(CORES in pool.env or pool.tensor_parallel > 1 for pool in pools.values()) or CORES in os.environ
    if len(pools) < 2 or taken or share < max(1, len(cores) - 1):
        return config
    bound = {}
    for index, (name, pool) in enumerate(pools.items()):
        own = cores[index * share : (index + 1) * share]
        bound[name] = pool.model_copy(update={"env": {**pool.env, CORES: ",".join(map(str, own))}})
    return config.with_pools({**config.pools, **bound})
