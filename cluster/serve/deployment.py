"""Starts, changes and stops a deployment on Ray: `skim serve`, `skim demo` and `skim deploy`."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from actors.lifecycle.starts import forget_failed_starts
from actors.ray_hooks.ray_core import ON_LOOPBACK
from actors.ray_hooks.serve import running_http_options
from cluster.config.schema import DeploymentConfig
from cluster.serve.app import APP_NAME, SERVE_SWITCHES, build_app, logging_options
from cluster.serve.placement import ACCELERATOR, check_fit, needed_resources
from cluster.serve.preflight import check_port, checked
from cluster.serve.ray_cluster import (
    as_skim_error,
    call_with_timeout,
    drain_connections,
    join_ray,
    ray_answers,
    start_ray,
)
from cluster.serve.status import await_running, messages
from router.options.settings import RouterConfig
from skim_common.environment import unless_set
from skim_common.errors import SkimError

Progress = Callable[[str], None]

SHUTDOWN_LIMIT_S = 30.0
ENDPOINT = {"host": "host", "port": "port", "ssl_certfile": "tls_cert", "ssl_keyfile": "tls_key"}
"""Fields of ray.serve.config.HTTPOptions, and the settings of the router that they are. Serve's proxy ends TLS."""


@contextmanager
def deployed(
    config: DeploymentConfig, *, address: str | None = None, progress: Progress = print, name: str = APP_NAME
) -> Iterator[str]:
    """Run `config` while the context lasts. Gives the endpoint's base URL once every pool is ready. Raises SkimError.

    address: a running Ray cluster ("auto": the one on this machine); None starts a new one. progress: called with one
    line per change of state. name: of the Serve application; what a killed run of that name left in the cluster is
    replaced, unless the name is APP_NAME.
    """
    config = checked(config, is_local=address is None, print_line=progress)
    if address is None:
        _start_ray(config)
    else:
        join_ray(address)
        _prepare_cluster(config, name)
    try:
        yield apply(config, name, progress=progress)
    finally:
        _stop(name)


def deploy(config: DeploymentConfig, address: str, *, progress: Progress = print) -> str:
    """Start `config` on the running Ray cluster at `address` and leave it running; the endpoint's base URL."""
    config = checked(config, is_local=False, print_line=progress)
    join_ray(address)
    is_new = False
    try:
        is_new = APP_NAME not in serve.status().applications
        return apply(config, progress=progress)
    except SkimError:
        # Serve would retry a new application forever. After a failed update, the old replicas keep running.
        if is_new and APP_NAME in serve.status().applications:
            serve.delete(APP_NAME)
        raise
    finally:
        ray.shutdown()


def apply(config: DeploymentConfig, name: str = APP_NAME, *, progress: Progress = print) -> str:
    """Start `config` on the connected Ray cluster, or update the running deployment to it; the endpoint's base URL.

    Serve replaces only the changed replicas, one after the other. An old replica takes no new requests and stops when
    its answers are finished, at the latest after `drain_timeout_s`. A pool of two or more replicas stays available.
    """
    with as_skim_error("the deployment did not start", "see that the port, memory and disk are free, and start again"):
        config = config.placed(on_gpus=bool(ray.cluster_resources().get("GPU")))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        check_fit(config, ray.cluster_resources(), nodes)
        check_endpoint(config.router, running_http_options())
        earlier = messages(name)
        forget_failed_starts(name)
        serve.start(
            http_options=HTTPOptions(**http_options(config.router)),
            logging_config=LoggingConfig(log_level="WARNING"),
        )
        logs = LoggingConfig(**logging_options(config.observability))
        serve.run_many(
            [serve.RunTarget(build_app(config), name, "/", logs)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        await_running(name, progress, earlier)
        return base_url(config.router)


def http_options(router: RouterConfig) -> dict[str, Any]:
    """Arguments of ray.serve.config.HTTPOptions."""
    return {option: getattr(router, setting) for option, setting in ENDPOINT.items()}


def check_endpoint(router: RouterConfig, running: HTTPOptions | None) -> None:
    """Raise SkimError if the Serve that runs has another endpoint: it keeps the one with which it was started.

    running: None if no Serve runs.
    """
    for option, setting in ENDPOINT.items() if running else ():
        has, wanted = getattr(running, option), getattr(router, setting)
        if has != wanted:
            raise SkimError(
                f"router.{setting} is {wanted}, but Serve on this Ray cluster was started with {has}, and keeps its"
                " endpoint while it runs: set that, or take it down with `serve shutdown` and deploy again"
            )


def base_url(router: RouterConfig) -> str:
    """The endpoint's URL for a client on this machine."""
    host = "127.0.0.1" if router.host in ("0.0.0.0", "::") else router.host
    return f"{'https' if router.tls_cert else 'http'}://{host}:{router.port}"


def _start_ray(config: DeploymentConfig) -> None:
    needed = needed_resources(config, at_most=True)
    cpus = max(os.cpu_count() or 1, math.ceil(needed.pop("CPU", 0)))
    # Ray finds the GPUs itself.
    pools = {name: amount for name, amount in needed.items() if name != "GPU" and not name.startswith(ACCELERATOR)}
    start_ray(unless_set(SERVE_SWITCHES | ON_LOOPBACK), num_cpus=cpus, resources=pools)


def _prepare_cluster(config: DeploymentConfig, name: str) -> None:
    """Delete the application that a killed run of `name` left. Raises SkimError if the cluster serves another one."""
    try:
        running = set(serve.status().applications)
        if others := ", ".join(sorted(running - ({name} - {APP_NAME}))):
            raise SkimError(
                f"this Ray cluster already serves {others}: use its endpoint, or stop it with `serve shutdown`"
            )
        if name in running:
            serve.delete(name)
        elif running_http_options() is None:  # else Serve's proxy listens on the port already
            check_port(config.router.host, config.router.port)
    except SkimError:
        ray.shutdown()
        raise


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
