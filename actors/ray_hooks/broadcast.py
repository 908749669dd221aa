"""A call to every replica of a deployment, in which a replica that hangs costs no other's reply.

Serve's `DeploymentBroadcastResponse.results_async` loses all replies if one is late, so this waits for each alone.
"""

import asyncio
from typing import Any

from ray.serve.handle import DeploymentHandle


async def replies_of_all(handle: DeploymentHandle, method: str, *args: Any, timeout_s: float) -> list[Any]:
    """What the replicas that run reply, each within `timeout_s`, or the errors in place of replies.

    Raises RayError, TimeoutError and RayServeException if no replica can be asked.
    """
    response = handle.broadcast(method, *args)
    async with asyncio.timeout(timeout_s):
        results = await response._fetch_replica_results_async()
    waits = (asyncio.wait_for(result.get_async(), timeout_s) for result in results)
    return await asyncio.gather(*waits, return_exceptions=True)
