"""Waiting until all parts of a deployment run, or until a start has failed. Serve itself would retry forever."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from actors.lifecycle.starts import last_failed_start
from cluster.serve.ray_cluster import app_handle, call_with_timeout, ray_answers
from cluster.serve.status import failure_reason
from skim_common.errors import SkimError

T = TypeVar("T")

FAILED_START = "failed to start with exception"
"""Part of Serve's message on a deployment whose replica did not start (ray.serve._private.deployment_state)."""

# Each status call costs CPU time, on the same cores on which the replicas start.
_POLL_S = 1.0
_REPLY_LIMIT_S = 20.0
"""How long Serve may take to reply. Its controller is away for some seconds after it has died."""


def messages(name: str) -> dict[str, str]:
    """Serve's message on each deployment of the application; empty if it does not run."""
    application = serve.status().applications.get(name)
    return {part: status.message for part, status in application.deployments.items()} if application else {}


def await_running(name: str, progress: Callable[[str], None], earlier: Mapping[str, str]) -> None:
    """Wait until all parts run. earlier: messages before this change. Raises SkimError if a start has failed since.

    A part that has become ready since the change has started: if it dies after that, Serve heals it. The same holds for
    Serve's controller, which Ray starts again.
    """
    announced: set[str] = set()
    begun: set[str] = set()
    ready: set[str] = set()
    while True:
        if (application := _while_ray_lives(lambda: _application(name))) is not None:
            for part, deployment in application.deployments.items():
                if deployment.status != "HEALTHY":
                    begun.add(part)
                    continue
                if part in begun:
                    ready.add(part)
                if part not in announced:
                    announced.add(part)
                    progress(f"{part} is ready")
            if application.status == ApplicationStatus.RUNNING and _while_ray_lives(lambda: _routers_are_ready(name)):
                return
            if reason := _failure(name, application, earlier, ready):
                raise SkimError(f"the deployment did not start: {reason}")
        time.sleep(_POLL_S)


def _application(name: str) -> ApplicationStatusOverview:
    if (application := serve.status().applications.get(name)) is None:
        raise SkimError("the deployment has been deleted from its Ray cluster")
    return application


def _while_ray_lives(ask: Callable[[], T]) -> T | None:
    """What Serve replies; None if it does not, while Ray still answers. Raises SkimError, and what `ask` raises if Ray
    has ended."""
    try:
        return call_with_timeout(ask, _REPLY_LIMIT_S)
    except SkimError:
        raise
    except Exception:
        if not ray_answers():
            raise
        return None


def _routers_are_ready(name: str) -> bool:
    """Whether every router has connected to its pools. Raises SkimError for a problem that a user must correct."""
    problems = app_handle(name).broadcast("problem").results()
    for problem, failed in problems:
        if failed:
            raise SkimError(f"the deployment did not start: {problem}")
    return bool(problems) and all(problem is None for problem, _ in problems)


def _failure(
    name: str, application: ApplicationStatusOverview, earlier: Mapping[str, str], ready: Collection[str]
) -> str | None:
    """Why a start has failed; None if none has. A replica that died after it was running is no failure.

    Serve keeps its message on a failed start until it changes the deployment, so only a new one counts. It names the
    replica's process and actor: two failures never have one text. ready: parts that have started.
    """
    parts = application.deployments
    news = {part: now.message for part, now in parts.items() if now.message and now.message != earlier.get(part)}
    starting = {part: now for part, now in parts.items() if now.status != "HEALTHY" and part not in ready}
    failed = any(FAILED_START in news.get(part, "") for part in starting)
    if application.status == ApplicationStatus.UNHEALTHY:
        has_died = any(now.status == "UNHEALTHY" for now in parts.values())
        failed |= not has_died or any(
            now.status == "UNHEALTHY" and now.status_trigger != "HEALTH_CHECK_FAILED" for now in starting.values()
        )
    if not failed and application.status != ApplicationStatus.DEPLOY_FAILED:
        return None
    # The replica's own note: Serve's message does not hold it where a start was ended by its time limit.
    noted = [start.reason for part in news if (start := last_failed_start(name, part))]
    return noted[0] if noted else failure_reason([*news.values(), application.message])
