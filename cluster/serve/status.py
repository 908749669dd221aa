"""The state of a deployment on Ray: waiting until it runs, one line per part, and watching it until Ctrl-C.

Serve retries a failed start forever; `await_running` ends with the first one.
"""

import re  # noqa: TID251  messages of engines and of Serve
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from threading import Event
from typing import NamedTuple

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview
from ray.util import placement_group_table

from actors.lifecycle.starts import failed_probes, last_failed_start
from actors.ray_hooks.ray_core import dead_ray_process
from cluster.serve.app import APP_NAME
from cluster.serve.ray_cluster import app_handle, call_with_timeout, ray_answers
from skim_common.errors import SkimError

ORDER = ("router", "speculator", "prefill", "target")
NOT_PLACED = ("PENDING", "RESCHEDULING")
SCALING = ("UPSCALING", "DOWNSCALING")
"""With an `UPDATING` of which replicas run: what changes its size or its version, and is not down."""
PROXY_ENDS = ("UNHEALTHY", "DRAINED")
FAILED_START = "failed to start with exception"
"""Part of Serve's message on a deployment whose replica did not start (ray.serve._private.deployment_state)."""

POLL_S = 1.0
"""Between two looks at a start. Each costs CPU time, on the same cores on which the replicas start."""
PERIOD_S = 2.0
LIMIT_S = 10.0
"""How often a running deployment is looked at, and how long Serve may take to answer."""
PATIENT_LIMIT_S = 20.0
"""How long Serve may take to answer one question. Its controller is away for some seconds after it has died."""
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


def messages(name: str) -> dict[str, str]:
    """Serve's message on each deployment of the application; empty if it does not run."""
    application = serve.status().applications.get(name)
    return {part: status.message for part, status in application.deployments.items()} if application else {}


def await_running(name: str, progress: Callable[[str], None], earlier: Mapping[str, str]) -> None:
    """Wait until all parts run. earlier: messages before this change. Raises SkimError if a start has failed since.

    A part that has become ready since the change has started: if it dies after that, Serve heals it. The same holds for
    Serve's controller, which Ray starts again.
    """
    announced, begun, ready = set[str](), set[str](), set[str]()
    while True:
        try:
            application, serves = call_with_timeout(lambda: _state_of_start(name), PATIENT_LIMIT_S)
        except SkimError:
            raise
        except Exception:
            if not ray_answers():
                raise
        else:
            healthy = {part for part, state in application.deployments.items() if state.status == "HEALTHY"}
            begun |= application.deployments.keys() - healthy
            ready |= healthy & begun
            for part in sorted(healthy - announced):
                progress(f"{part} is ready")
            announced |= healthy
            if serves:
                return
            if reason := _failure(name, application, earlier, ready):
                raise SkimError(f"the deployment did not start: {reason}")
        time.sleep(POLL_S)


def _state_of_start(name: str) -> tuple[ApplicationStatusOverview, bool]:
    """The application, and whether it serves: all parts run, and every router has connected to its pools."""
    if (application := serve.status().applications.get(name)) is None:
        raise SkimError("the deployment has been deleted from its Ray cluster")
    return application, application.status == ApplicationStatus.RUNNING and _routers_are_ready(name)


def _routers_are_ready(name: str) -> bool:
    """Raises SkimError for a problem that a user must correct."""
    problems = app_handle(name).broadcast("problem").results()
    for problem, failed in problems:
        if failed:
            raise SkimError(f"the deployment did not start: {problem}")
    return bool(problems) and all(problem is None for problem, _ in problems)


def _failure(
    app: str, application: ApplicationStatusOverview, earlier: Mapping[str, str], ready: Collection[str]
) -> str | None:
    """Why a start has failed; None if none has. A replica that died after it was running is no failure.

    Serve keeps its message on a failed start until it changes the deployment, so only a new one counts. It names the
    replica's process and actor: two failures never have one text. ready: parts that have started.
    """
    parts = application.deployments
    new = {name: part.message for name, part in parts.items() if part.message and part.message != earlier.get(name)}
    starting = {name: part for name, part in parts.items() if part.status != "HEALTHY" and name not in ready}
    failed = any(FAILED_START in new.get(name, "") for name in starting)
    if application.status == ApplicationStatus.UNHEALTHY:
        has_died = any(part.status == "UNHEALTHY" for part in parts.values())
        failed |= not has_died or any(
            part.status == "UNHEALTHY" and part.status_trigger != "HEALTH_CHECK_FAILED" for part in starting.values()
        )
    if not failed and application.status != ApplicationStatus.DEPLOY_FAILED:
        return None
    # The replica's own note: Serve's message does not hold it where a start was ended by its time limit.
    noted = [start.reason for part in new if (start := last_failed_start(app, part))]
    return noted[0] if noted else failure_reason([*new.values(), application.message])


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
    others = (f", {n} {state.lower()}" for state, n in part.replica_states.items() if state != "RUNNING" and n)
    line = f"{name}: {part.status.lower().replace('_', ' ')} ({running} running{''.join(others)})"
    if part.status == "HEALTHY":
        return PartStatus(name, line)
    reason = _reason(app, name, part.message)
    changes = part.status in SCALING or (part.status == "UPDATING" and running)
    shown = reason or "replicas are starting or ending"
    return PartStatus(name, f"{line}: {shown}", "" if changes and not reason else shown)


def _reason(app: str, pool: str, message: str) -> str:
    """Why a pool is down. Serve's message lacks what a placement group waits for, and starts that it has forgotten."""
    for group in placement_group_table().values():  # of a replica on several nodes, it has the name of its actor
        if group["state"] in NOT_PLACED and group["name"].startswith(f"SERVE_REPLICA::{app}#{pool}#"):
            total = sum((Counter(bundle) for bundle in group["bundles"].values()), Counter[str]())
            awaited = ", ".join(f"{amount:.3g} {resource}" for resource, amount in sorted(total.items()))
            return f"a replica waits for nodes with {awaited} in all"
    if failed := last_failed_start(app, pool):
        times = f" {failed.failures} times in a row" if failed.failures > 1 else ""
        return f"a replica failed to start{times}: {failed.reason}"
    for pattern, meaning in MEANINGS:
        if match := re.search(pattern, message):
            return meaning.format(*match.groups())
    return failure_reason([message]) if message.strip() else ""


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
