"""`skim status`: one line per pool and for the router, with the reason if it is down."""

import ray
from ray import serve
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview
from rich.console import Console

from cluster.serve.app import APP_NAME
from cluster.serve.deployment import failure_reason, join_ray
from kv_transfer.errors import SkimError

ORDER = ("router", "speculator", "prefill", "target")


def run_status(address: str, console: Console) -> bool:
    """Print one line per part. Returns whether all parts are healthy. Raises SkimError if no deployment runs."""
    join_ray(address)
    try:
        applications = serve.status().applications
        if APP_NAME not in applications:
            raise SkimError(f"no deployment of Skim runs on the Ray cluster at {address}; start one with `skim deploy`")
        lines = status_lines(applications[APP_NAME])
    finally:
        ray.shutdown()
    for _, line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return all(healthy for healthy, _ in lines)


def status_lines(application: ApplicationStatusOverview) -> list[tuple[bool, str]]:
    """(whether it is healthy, its line) for each pool and the router."""
    parts = sorted(application.deployments.items(), key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else 9)
    return [(part.status == "HEALTHY", f"{name}: {_about(part)}") for name, part in parts]


def _about(part: DeploymentStatusOverview) -> str:
    running = part.replica_states.get("RUNNING", 0)
    others = [
        f"{count} {state.lower()}" for state, count in part.replica_states.items() if state != "RUNNING" and count
    ]
    replicas = ", ".join([f"{running} running", *others])
    if part.status == "HEALTHY":
        return f"healthy ({replicas})"
    why = failure_reason([part.message]) if part.message.strip() else "replicas are starting or ending"
    return f"{part.status.lower().replace('_', ' ')} ({replicas}): {why}"
