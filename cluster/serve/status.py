"""The state of a running deployment: one line per part, with the reason if it is down."""

import re  # noqa: TID251  messages of engines and of Serve
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray import serve
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview, ServeStatus
from ray.util import placement_group_table

from actors.lifecycle.failed_probes import failed_probes
from actors.lifecycle.failed_starts import FailedStart, last_failed_start
from cluster.serve.app import APP_NAME

ORDER = ("router", "speculator", "prefill", "target")
NOT_PLACED = ("PENDING", "RESCHEDULING")
SCALING = ("UPSCALING", "DOWNSCALING")
"""With an `UPDATING` of which replicas run: what changes its size or its version, and is not down."""
PROXY_ENDS = ("UNHEALTHY", "DRAINED")
TRUST = "start_probe: off trusts the pool"


class PartStatus(NamedTuple):
    """A pool, the router or a proxy. line: its state and, if it is not healthy, the reason. reason: empty if there is
    nothing to repair: it is healthy, or changes its size or version while replicas run."""

    name: str
    line: str
    reason: str = ""


class Causes(NamedTuple):
    """What Serve's messages lack, by pool. waiting: see `waiting_groups`. failed: see `last_failed_start`."""

    waiting: Mapping[str, str] = {}
    failed: Mapping[str, FailedStart | None] = {}


def current_parts(name: str = APP_NAME) -> list[PartStatus] | None:
    """The parts of the application on the connected Ray cluster; None if it does not run. It may wait for Ray."""
    status = serve.status()
    application = status.applications.get(name)
    if application is None:
        return None
    down = [part for part, found in application.deployments.items() if found.status != "HEALTHY"]
    failed = {part: last_failed_start(name, part) for part in down}
    waiting = waiting_groups(placement_group_table(), name) if down else {}
    probes = probe_parts(failed_probes(name))
    return [*parts_of(application, Causes(waiting, failed)), *probes, *_proxies(status)]


def waiting_groups(table: Mapping[str, Mapping[str, Any]], name: str = APP_NAME) -> dict[str, str]:
    """By pool, the resources that a replica on several nodes waits for.

    table: of ray.util.placement_group_table. Serve gives the placement group of a replica the name of its actor.
    """
    replicas = f"SERVE_REPLICA::{name}#"
    waiting: dict[str, str] = {}
    for group in table.values():
        pool = group["name"].removeprefix(replicas).partition("#")[0]
        if group["state"] in NOT_PLACED and group["name"].startswith(replicas):
            total = sum((Counter(bundle) for bundle in group["bundles"].values()), Counter[str]())
            waiting[pool] = ", ".join(f"{amount:.3g} {resource}" for resource, amount in sorted(total.items()))
    return waiting


def parts_of(application: ApplicationStatusOverview, causes: Causes = Causes()) -> list[PartStatus]:  # noqa: B008  a constant
    """The pools and the router of an application."""
    parts = sorted(application.deployments.items(), key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else 9)
    return [_part(name, part, causes) for name, part in parts]


def probe_parts(failed: Mapping[str, str]) -> list[PartStatus]:
    """The start probes that have failed, by pool (`failed_probes`): their pools run, but cannot be trusted."""
    names = {pool: f"{pool} start probe" for pool in failed}
    return [
        PartStatus(names[pool], f"{names[pool]}: failed, so all prompts run dense ({TRUST}): {why}", why)
        for pool, why in sorted(failed.items())
    ]


def _proxies(status: ServeStatus) -> list[PartStatus]:
    """The HTTP proxies that do not work, and no others: there is one on each node."""
    ends = [node for node, state in status.proxies.items() if state in PROXY_ENDS]
    reason = f"{len(ends)} of {len(status.proxies)} do not answer"
    return [PartStatus("proxy", f"proxy: {reason}", reason)] if ends else []


def _part(name: str, part: DeploymentStatusOverview, causes: Causes) -> PartStatus:
    running = part.replica_states.get("RUNNING", 0)
    others = [
        f"{count} {state.lower()}" for state, count in part.replica_states.items() if state != "RUNNING" and count
    ]
    replicas = ", ".join([f"{running} running", *others])
    state = part.status.lower().replace("_", " ")
    if part.status == "HEALTHY":
        return PartStatus(name, f"{name}: {state} ({replicas})")
    why = _why(name, part.message, causes)
    changes = part.status in SCALING or (part.status == "UPDATING" and running)
    told = why or "replicas are starting or ending"
    return PartStatus(name, f"{name}: {state} ({replicas}): {told}", "" if changes and not why else told)


def _why(name: str, message: str, causes: Causes) -> str:
    if waits_for := causes.waiting.get(name):
        return f"a replica waits for nodes with {waits_for} in all"
    if failed := causes.failed.get(name):
        times = f" {failed.failures} times in a row" if failed.failures > 1 else ""
        return f"a replica failed to start{times}: {failed.reason}"
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, message):
            return meaning.format(*found.groups())
    return failure_reason([message]) if message.strip() else ""


_MEANINGS = (
    (
        r"SIGKILL|OutOfMemoryError|running low on memory|worker process has died",
        "the process of a replica was killed while it started, perhaps by the kernel for memory",
    ),
    (
        r"to be scheduled[^{]*\{([^}]*)\}[^{]*\{([^}]*)\}",
        "a replica waits for free resources: it needs {0}; the cluster has {1}",
    ),
    (r"taken more than \d+s to initialize", "a replica takes long to start"),
    (r"health check failed", "a replica died or hung; another one is starting"),
)
"""Serve's messages (ray.serve._private.deployment_state) by a part of them, and what they mean here."""


def failure_reason(messages: list[str]) -> str:
    """The message of the last exception in Serve's report of a failed replica."""
    for message in messages:
        found = re.findall(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception))(?:\(|: )(.+)$", message, re.MULTILINE)
        if found:
            return found[-1][1].strip()
    return messages[-1].strip().splitlines()[-1] if messages[-1].strip() else "Ray Serve gave no reason; see its logs"
