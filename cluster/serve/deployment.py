"""Starts, changes and stops a deployment on Ray: `skim serve`, `skim demo` and `skim deploy`."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import ray
import torch
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, LoggingConfig

from actors.lifecycle.failed_starts import forget_failed_starts, last_failed_start
from actors.ray_hooks.loopback import ON_LOOPBACK
from actors.ray_hooks.serve_client import running_http_options
from cluster.config.schema import DeploymentConfig
from cluster.serve.app import APP_NAME, SERVE_SWITCHES, build_app, logging_options
from cluster.serve.endpoint import base_url, check_certificate, check_endpoint, http_options
from cluster.serve.placement import ACCELERATOR, check_nodes, needed_resources, on_own_cores, taken_by_one
from cluster.serve.preflight import (
    check_deployment,
    check_memory,
    check_one_node,
    check_port,
    fetch_weights,
    with_pinned_models,
)
from cluster.serve.ray_cluster import (
    app_handle,
    as_skim_error,
    call_with_timeout,
    drain_connections,
    join_ray,
    ray_answers,
    start_ray,
)
from cluster.serve.status import failure_reason
from skim_common.environment import unless_set
from skim_common.errors import SkimError

T = TypeVar("T")
Progress = Callable[[str], None]

SHUTDOWN_LIMIT_S = 30.0

FAILED_START = "failed to start with exception"
"""Part of Serve's message on a deployment whose replica did not start (ray.serve._private.deployment_state)."""

START_ADVICE = "see that the port, memory and disk are free, and start again"

# Each status call costs CPU time, on the same cores on which the replicas start.
_POLL_S = 1.0
_REPLY_LIMIT_S = 20.0
"""How long Serve may take to reply. Its controller is away for some seconds after it has died."""


@contextmanager
def deployed(
    config: DeploymentConfig, *, address: str | None = None, progress: Progress = print, name: str = APP_NAME
) -> Iterator[str]:
    """Run `config` while the context lasts. Gives the endpoint's base URL once every pool is ready.

    address: a running Ray cluster ("auto": the one on this machine); None starts a new one. progress: called with one
    line per change of state. name: of the Serve application; an application of that name that a killed run left in the
    cluster is replaced, unless the name is APP_NAME. Raises SkimError for mistakes that a user can correct.
    """
    if address is None:
        check_one_node(config)
        check_port(config.router.host, config.router.port)
    config = _checked(config, progress)
    with ExitStack() as stack:
        if address is None:
            fetch_weights(config, progress)
            config = on_own_cores(config.placed(on_gpus=torch.cuda.is_available()))
            check_memory(config)
            _start_ray(config, unless_set(SERVE_SWITCHES | ON_LOOPBACK))
        else:
            join_ray(address)
            _prepare_cluster(config, name)
        stack.callback(_stop, name)
        yield apply(config, name, progress=progress)


def deploy(config: DeploymentConfig, address: str, *, progress: Progress = print) -> str:
    """Start `config` on the running Ray cluster at `address` and leave it running; the endpoint's base URL."""
    config = _checked(config, progress)
    join_ray(address)
    try:
        is_new = APP_NAME not in serve.status().applications
        try:
            return apply(config, progress=progress)
        except SkimError:
            # Serve would retry a new application forever. After a failed update, the old replicas keep running.
            if is_new and APP_NAME in serve.status().applications:
                serve.delete(APP_NAME)
            raise
    finally:
        ray.shutdown()


def _checked(config: DeploymentConfig, progress: Progress) -> DeploymentConfig:
    """The deployment with its models pinned, after the checks that need no Ray. Raises SkimError."""
    check_certificate(config.router, may_be_elsewhere=config.spans_machines)
    config = with_pinned_models(config)
    if notice := check_deployment(config):
        progress(notice)
    return config


def apply(config: DeploymentConfig, name: str = APP_NAME, *, progress: Progress = print) -> str:
    """Start `config` on the connected Ray cluster, or update the running deployment to it; the endpoint's base URL.

    Serve replaces only the changed replicas, one after the other. An old replica takes no new requests and stops when
    its answers are finished, at the latest after `drain_timeout_s`. A pool of two or more replicas stays available.
    """
    with as_skim_error("the deployment did not start", START_ADVICE):
        config = config.placed(on_gpus=bool(ray.cluster_resources().get("GPU")))
        _check_resources(config)
        check_endpoint(config.router, running_http_options())
        earlier = _messages(name)
        forget_failed_starts(name)
        serve.start(
            http_options=HTTPOptions(**http_options(config.router)),
            logging_config=LoggingConfig(log_level="WARNING"),
        )
        serve.run_many(
            [serve.RunTarget(build_app(config), name, "/", logging_options(config.observability))],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        _await_running(name, progress, earlier)
        return base_url(config.router)


def _start_ray(config: DeploymentConfig, switches: Mapping[str, str]) -> None:
    """Start a local Ray cluster. switches: environment variables of all its processes."""
    needed = needed_resources(config, at_most=True)
    cpus = max(os.cpu_count() or 1, math.ceil(needed.pop("CPU", 0)))
    # Ray finds the GPUs itself.
    pools = {name: amount for name, amount in needed.items() if name != "GPU" and not name.startswith(ACCELERATOR)}
    start_ray(switches, num_cpus=cpus, resources=pools)


def _prepare_cluster(config: DeploymentConfig, name: str) -> None:
    """Delete the application that a killed run of `name` left. Raises SkimError if the cluster serves another one."""
    try:
        running = set(serve.status().applications)
        if foreign := running - ({name} - {APP_NAME}):
            others = ", ".join(sorted(foreign))
            raise SkimError(
                f"this Ray cluster already serves {others}: use its endpoint, or stop it with `serve shutdown`"
            )
        if name in running:
            serve.delete(name)
        elif not _serve_runs():
            check_port(config.router.host, config.router.port)
    except SkimError:
        ray.shutdown()
        raise


def _serve_runs() -> bool:
    """Whether Serve runs in this cluster. If so, its proxy already listens on the port."""
    return any(actor["namespace"] == "serve" for actor in ray.util.list_named_actors(all_namespaces=True))


def _check_resources(config: DeploymentConfig) -> None:
    """Raise SkimError if the cluster lacks a resource. Serve would wait for it silently."""
    offered = ray.cluster_resources()
    for name, amount in needed_resources(config).items():
        if offered.get(name, 0.0) < amount:
            if name == "GPU":
                raise SkimError(_too_few_gpus(offered.get(name, 0.0), amount))
            raise SkimError(
                f"the Ray cluster offers {offered.get(name, 0.0):g} of the resource {name}, but this deployment needs "
                f"{amount:g}: start nodes with it (for example ray start --resources '{{\"{name}\": {amount:g}}}')"
            )
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, parts in taken_by_one(config).items():
        check_nodes(name, parts, nodes)


def _too_few_gpus(offered: float, needed: float) -> str:
    return (
        f"the Ray cluster has {offered:g} GPUs, but this deployment needs {needed:g}: use fewer replicas or less tensor"
        " parallelism, or let pools share a GPU: set gpus_per_replica of each to a fraction, and"
        " engine_options.gpu_memory_utilization to its share of the GPU's memory"
    )


def _messages(name: str) -> dict[str, str]:
    """Serve's message on each deployment of the application, before it is changed; empty if it does not run."""
    application = serve.status().applications.get(name)
    return {part: found.message for part, found in application.deployments.items()} if application else {}


def _await_running(name: str, progress: Progress, earlier: Mapping[str, str]) -> None:
    """Wait until all parts run. earlier: messages before this change. Raises SkimError if a start has failed since.

    A part that has become ready since the change has started: if it dies after that, Serve heals it. The same holds for
    Serve's controller, which Ray starts again.
    """
    told: set[str] = set()
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
                if part not in told:
                    told.add(part)
                    progress(f"{part} is ready")
            if application.status == ApplicationStatus.RUNNING and _while_ray_lives(lambda: _routers_are_ready(name)):
                return
            if _has_failed(application, earlier, ready):
                raise SkimError(f"the deployment did not start: {_why_it_failed(application, earlier, name)}")
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


def _why_it_failed(application: ApplicationStatusOverview, earlier: Mapping[str, str], name: str) -> str:
    """What the replica noted itself; Serve's message does not hold it where a start was ended by its time limit."""
    news = _news(application, earlier)
    noted = [failed.reason for part in news if (failed := last_failed_start(name, part))]
    return noted[0] if noted else failure_reason([*news.values(), application.message])


def _routers_are_ready(name: str) -> bool:
    """Whether every router has connected to its pools. Raises SkimError for a problem that a user must correct."""
    problems = app_handle(name).broadcast("problem").results()
    for problem, failed in problems:
        if failed:
            raise SkimError(f"the deployment did not start: {problem}")
    return bool(problems) and all(problem is None for problem, _ in problems)


def _news(application: ApplicationStatusOverview, earlier: Mapping[str, str]) -> dict[str, str]:
    """The messages that are new. Serve keeps the message on a failed start until it changes the deployment.

    A message on a failed start names process and actor of its replica, so two failures never have one text.
    """
    said = {part: found.message for part, found in application.deployments.items()}
    return {part: message for part, message in said.items() if message and message != earlier.get(part)}


def _has_failed(application: ApplicationStatusOverview, earlier: Mapping[str, str], ready: Collection[str]) -> bool:
    """Whether a start has failed. A replica that died after it was running is no failure: Serve replaces it.

    ready: parts that have started. Serve itself retries forever (`cluster.serve.app.MAX_STARTS`); its message reports
    the failed start.
    """
    starting = {part: found for part, found in application.deployments.items() if part not in ready}
    news = _news(application, earlier)
    if any(found.status != "HEALTHY" and FAILED_START in news.get(part, "") for part, found in starting.items()):
        return True
    if application.status != ApplicationStatus.UNHEALTHY:
        return application.status == ApplicationStatus.DEPLOY_FAILED
    sick = [part for part, found in application.deployments.items() if found.status == "UNHEALTHY"]
    return not sick or any(starting[part].status_trigger != "HEALTH_CHECK_FAILED" for part in sick if part in starting)


def _stop(name: str) -> None:
    """Drain and stop our application, then disconnect from Ray. A Ray cluster started here stops too."""
    if not ray.is_initialized():
        return
    if not ray_answers():
        with suppress(TimeoutError):
            call_with_timeout(ray.shutdown, SHUTDOWN_LIMIT_S)
        return
    try:
        with suppress(RayError, RayServeException):  # Serve may be what did not start
            drain_connections(name)
            # `delete` waits a minute. On a cluster that keeps running, Serve deletes the rest after the last answer.
            with suppress(TimeoutError):
                serve.delete(name)
    finally:
        ray.shutdown()
