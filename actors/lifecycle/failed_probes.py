"""The replicas whose start probe has failed, in Ray's key-value store: routers then run all prompts dense.

A target could not answer dense by itself, because it gets the kept tokens alone. A row is valid as long as its replica
lives. Outside Ray nothing is noted.
"""

import asyncio
import json

import ray

from actors.ray_hooks import key_value_store
from actors.ray_hooks.controller import actor_lives

PREFIX = "skim-failed-probes-"
REPLICA = "SERVE_REPLICA::"
"""Serve names the actor of a replica SERVE_REPLICA::application#deployment#id."""

READ_PERIOD_S = 2.0
"""Each router reads the rows so often."""


async def note_failed_probe(reason: str) -> None:
    """Note that the probe of this replica has failed. Returns when all routers have read it."""
    if ray.is_initialized():
        key_value_store.put(PREFIX + (ray.get_runtime_context().get_actor_name() or ""), json.dumps(reason))
        await asyncio.sleep(2 * READ_PERIOD_S)


def failed_probes(app: str) -> dict[str, str]:
    """By pool, why the probe of one of its living replicas has failed. Removes the rows of others."""
    start = f"{PREFIX}{REPLICA}{app}#"
    reasons: dict[str, str] = {}
    for key in key_value_store.keys(start):
        if not actor_lives(key.removeprefix(PREFIX)):
            key_value_store.delete(key)
        elif reason := key_value_store.get(key):
            reasons[key.removeprefix(start).partition("#")[0]] = json.loads(reason)
    return reasons
