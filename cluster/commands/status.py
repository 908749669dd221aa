"""`skim status`: one line per pool and for the router, with the reason if it is down."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview
from ray.util import placement_group_table
from rich.console import Console

from cluster.serve.app import APP_NAME
from cluster.serve.deployment import failure_reason, join_ray
from kv_transfer.errors import SkimError

REPLICAS = f"SERVE_REPLICA::{APP_NAME}#"
NOT_PLACED = ("PENDING", "RESCHEDULING")
NOTHING: Mapping[str, str] = {}
ORDER = ("router", "speculator", "prefill", "target")


def run_status(address: str, console: Console) -> bool:
    """Print one line per part. Returns whether all parts are healthy. Raises SkimError if no deployment runs."""
    join_ray(address)
    try:
        applications = serve.status().applications
        if APP_NAME not in applications:
            raise SkimError(f"no deployment of Skim runs on the Ray cluster at {address}; start one with `skim deploy`")
        lines = status_lines(applications[APP_NAME], waiting_groups(placement_group_table()))
    finally:
        ray.shutdown()
    for _, line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return all(healthy for healthy, _ in lines)


def waiting_groups(table: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By pool, the resources that a replica on several nodes waits for.

    table: of ray.util.placement_group_table. Serve gives the placement group of a replica the name of its actor.
    """
    waiting: dict[str, str] = {}
    for group in table.values():
        pool = group["name"].removeprefix(REPLICAS).partition("#")[0]
        if group["state"] in NOT_PLACED and group["name"].startswith(REPLICAS):
            total = sum((Counter(bundle) for bundle in group["bundles"].values()), Counter[str]())
            waiting[pool] = ", ".join(f"{amount:.3g} {resource}" for resource, amount in sorted(total.items()))
    return waiting


def status_lines(
    application: ApplicationStatusOverview, waiting: Mapping[str, str] = NOTHING
) -> list[tuple[bool, str]]:
    """(whether it is healthy, its line) for each pool and the router. waiting: see `waiting_groups`."""
    parts = sorted(application.deployments.items(), key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else 9)
    return [(part.status == "HEALTHY", f"{name}: {_about(part, waiting.get(name))}") for name, part in parts]


def _about(part: DeploymentStatusOverview, waits_for: str | None) -> str:
    running = part.replica_states.get("RUNNING", 0)
    others = [
        f"{count} {state.lower()}" for state, count in part.replica_states.items() if state != "RUNNING" and count
    ]
    replicas = ", ".join([f"{running} running", *others])
    if part.status == "HEALTHY":
        return f"healthy ({replicas})"
    if waits_for:
        return f"{_state(part)} ({replicas}): a replica waits for nodes with {waits_for} in all"
    why = failure_reason([part.message]) if part.message.strip() else "replicas are starting or ending"
    return f"{_state(part)} ({replicas}): {why}"


def _state(part: DeploymentStatusOverview) -> str:
    return part.status.lower().replace("_", " ")
