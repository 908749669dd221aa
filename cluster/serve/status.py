"""The state of a running deployment, one line per part, with the reason if it is down; and watching it.

`skim serve` watches until Ctrl-C, or until its Ray is gone.
"""

import re  # noqa: TID251  messages of engines and of Serve
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import NamedTuple

import ray
from ray import serve
from ray.serve.schema import DeploymentStatusOverview
from ray.util import placement_group_table

from actors.lifecycle.starts import failed_probes, last_failed_start
from actors.ray_hooks.ray_core import dead_ray_process
from cluster.serve.app import APP_NAME
from cluster.serve.ray_cluster import call_with_timeout, ray_answers
from skim_common.errors import SkimError

ORDER = ("router", "speculator", "prefill", "target")
NOT_PLACED = ("PENDING", "RESCHEDULING")
SCALING = ("UPSCALING", "DOWNSCALING")
"""With an `UPDATING` of which replicas run: what changes its size or its version, and is not down."""
PROXY_ENDS = ("UNHEALTHY", "DRAINED")

PERIOD_S = 2.0
LIMIT_S = 10.0
"""How often the parts are looked at, and how long Serve may take to answer."""
PATIENT_LIMIT_S = 20.0
"""How long Serve may take to answer one question."""
RAY_GONE_AFTER_S = 30.0
"""Maximum time for which a Ray that was not started here may be out of reach: its head may be starting again."""

MEANINGS = (
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


class RayGoneError(SkimError):
    """The Ray cluster under a deployment has ended."""


class PartStatus(NamedTuple):
    """A pool, the router or a proxy. line: its state and, if it is not healthy, the reason. reason: empty if there is
    nothing to repair: it is healthy, or changes its size or version while replicas run."""

    name: str
    line: str
    reason: str = ""


def current_parts(app: str = APP_NAME) -> list[PartStatus] | None:
    """The parts of the application on the connected Ray cluster; None if it does not run. It may wait for Ray.

    A start probe that has failed is a part: its pool runs, but cannot be trusted. The HTTP proxies that do not work are
    one part.
    """
    status = serve.status()
    if (application := status.applications.get(app)) is None:
        return None
    names = sorted(application.deployments, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    parts = [_part(app, name, application.deployments[name]) for name in names]
    for pool, reason in sorted(failed_probes(app).items()):
        name = f"{pool} start probe"
        line = f"{name}: failed, so all prompts run dense (start_probe: off trusts the pool): {reason}"
        parts.append(PartStatus(name, line, reason))
    if ends := sum(state in PROXY_ENDS for state in status.proxies.values()):
        reason = f"{ends} of {len(status.proxies)} do not answer"
        parts.append(PartStatus("proxy", f"proxy: {reason}", reason))
    return parts


def running_parts(address: str) -> list[PartStatus]:
    """The parts of the deployment on the connected cluster. Raises SkimError if none runs or Serve does not answer.

    address: of the cluster, for the sentence.
    """
    try:
        parts = call_with_timeout(current_parts, PATIENT_LIMIT_S)
    except TimeoutError:
        raise SkimError(
            f"Serve's controller on the Ray cluster at {address} did not answer in {PATIENT_LIMIT_S:g} s; Ray restarts"
            " a controller that dies, so try again in a moment"
        ) from None
    if parts is None:
        raise SkimError(f"no deployment of Skim runs on the Ray cluster at {address}; start one with `skim deploy`")
    return parts


def _part(app: str, name: str, part: DeploymentStatusOverview) -> PartStatus:
    running = part.replica_states.get("RUNNING", 0)
    others = [
        f"{count} {state.lower()}" for state, count in part.replica_states.items() if state != "RUNNING" and count
    ]
    replicas = ", ".join([f"{running} running", *others])
    line = f"{name}: {part.status.lower().replace('_', ' ')} ({replicas})"
    if part.status == "HEALTHY":
        return PartStatus(name, line)
    reason = _reason(app, name, part.message)
    changes = part.status in SCALING or (part.status == "UPDATING" and running)
    shown = reason or "replicas are starting or ending"
    return PartStatus(name, f"{line}: {shown}", "" if changes and not reason else shown)


def _reason(app: str, pool: str, message: str) -> str:
    """Why a pool is down. Serve's message lacks what a placement group waits for, and starts that it has forgotten."""
    if resources := _awaited(app, pool):
        return f"a replica waits for nodes with {resources} in all"
    if failed := last_failed_start(app, pool):
        times = f" {failed.failures} times in a row" if failed.failures > 1 else ""
        return f"a replica failed to start{times}: {failed.reason}"
    for pattern, meaning in MEANINGS:
        if match := re.search(pattern, message):
            return meaning.format(*match.groups())
    return failure_reason([message]) if message.strip() else ""


def _awaited(app: str, pool: str) -> str:
    """What a replica on several nodes waits for: its placement group has the name of its actor."""
    for group in placement_group_table().values():
        if group["state"] in NOT_PLACED and group["name"].startswith(f"SERVE_REPLICA::{app}#{pool}#"):
            total = sum((Counter(bundle) for bundle in group["bundles"].values()), Counter[str]())
            return ", ".join(f"{amount:.3g} {resource}" for resource, amount in sorted(total.items()))
    return ""


def failure_reason(messages: list[str]) -> str:
    """The message of the last exception in Serve's report of a failed replica."""
    for message in messages:
        errors = re.findall(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception))(?:\(|: )(.+)$", message, re.MULTILINE)
        if errors:
            return errors[-1][1].strip()
    return messages[-1].strip().splitlines()[-1] if messages[-1].strip() else "Ray Serve gave no reason; see its logs"


def watch(stop: Event, print_line: Callable[[str], None], period_s: float = PERIOD_S) -> None:
    """Print a line for each change, until `stop` is set. Raises RayGoneError if Ray has ended."""
    down: dict[str, str] = {}
    silent_s = 0.0
    while not stop.wait(period_s):
        if dead := dead_ray_process():
            raise RayGoneError(f"Ray has ended, because its process {dead} has died: start `skim serve` again")
        try:
            parts = call_with_timeout(current_parts, LIMIT_S)
            silent_s = 0.0
        except Exception as error:
            silent_s += period_s + (LIMIT_S if isinstance(error, TimeoutError) else 0.0)
            if not ray.is_initialized() or (silent_s > RAY_GONE_AFTER_S and not ray_answers()):
                raise RayGoneError(
                    "the Ray cluster does not answer any more: start it and `skim serve` again"
                ) from None
            if "Serve" not in down:
                down["Serve"] = "its controller does not answer; Ray restarts it"
                print_line(f"Serve: {down['Serve']}")
            continue
        if parts is None:
            raise RayGoneError("the deployment has been deleted from its Ray cluster")
        for part in parts:
            if part.reason and down.get(part.name) != part.reason:
                print_line(part.line)
        before, down = down, {part.name: part.reason for part in parts if part.reason}
        for name in before.keys() - down:
            print_line(f"{name} is back")
