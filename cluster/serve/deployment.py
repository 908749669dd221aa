"""Bring a deployment up on Ray, change it while it runs, take it down again: `skim serve`, `demo` and `deploy`."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import ray
import torch
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, LoggingConfig

from cluster.config.schema import DeploymentConfig
from cluster.serve.app import (
    ACCELERATOR,
    APP_NAME,
    SERVE_SWITCHES,
    build_app,
    logging_options,
    needed_resources,
    taken_by_one,
)
from cluster.serve.cores import on_own_cores
from cluster.serve.front_proxy import haproxy_switches
from cluster.serve.preflight import check_memory, check_models, check_port
from kv_transfer.environment import unless_set, with_environment
from kv_transfer.errors import SkimError

Progress = Callable[[str], None]

# Each look takes the driver and Serve's controller time on cores that the replicas start on.
_POLL_S = 1.0


@contextmanager
def deployed(
    config: DeploymentConfig, *, address: str | None = None, progress: Progress = print, name: str = APP_NAME
) -> Iterator[str]:
    """Run `config` while the context lasts; gives the endpoint's base URL once every pool answers.

    address: a running Ray cluster ("auto" for the one on this machine); None starts a Ray of its own. progress is
    called with one line per change of state. name: of the Serve application; one of a name of its own is replaced if a
    killed run left it in the cluster. Raises SkimError for whatever a person can mend.
    """
    if address is None:
        check_port(config.router.host, config.router.port)
    check_models(config)
    with ExitStack() as stack:
        if address is None:
            config = on_own_cores(config.placed(on_gpus=torch.cuda.is_available()))
            check_memory(config)
            _start_ray(config, {**unless_set(SERVE_SWITCHES), **stack.enter_context(haproxy_switches())})
        else:
            _join_ray(address)
            _make_way(config, name)
        stack.callback(_stop, name)
        yield apply(config, name, progress=progress)


def deploy(config: DeploymentConfig, address: str, *, progress: Progress = print) -> str:
    """Put `config` on the running Ray cluster at `address` and leave it there; gives the endpoint's base URL."""
    check_models(config)
    _join_ray(address)
    try:
        return apply(config, progress=progress)
    finally:
        ray.shutdown()


def apply(config: DeploymentConfig, name: str = APP_NAME, *, progress: Progress = print) -> str:
    """Start `config` on the Ray that this process is connected to, or turn what runs there into it; the base URL.

    Serve replaces changed replicas one after the other, and only those: an old one takes no more requests and ends when
    its answers are finished, within `drain_timeout_s`. A pool of two replicas or more answers all the while.
    """
    config = config.placed(on_gpus=bool(ray.cluster_resources().get("GPU")))
    _check_resources(config)
    serve.start(
        http_options=HTTPOptions(host=config.router.host, port=config.router.port),
        logging_config=LoggingConfig(log_level="WARNING"),
    )
    serve.run_many(
        [serve.RunTarget(build_app(config), name, "/", logging_options(config.observability))],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    _await_running(name, progress)
    return f"http://{_reachable(config.router.host)}:{config.router.port}"


def _start_ray(config: DeploymentConfig, switches: Mapping[str, str]) -> None:
    """switches: environment of every process of that Ray."""
    needed = needed_resources(config, at_most=True)
    found_by_ray = ("CPU", "GPU", ACCELERATOR)
    pools = {name: amount for name, amount in needed.items() if not name.startswith(found_by_ray)}
    cpus = max(os.cpu_count() or 1, int(-(-needed["CPU"] // 1)))
    with with_environment(switches):
        _init_ray("start Ray on this machine", address="local", num_cpus=cpus, resources=pools, include_dashboard=False)


def _join_ray(address: str) -> None:
    _init_ray(f"reach the Ray cluster at {address}", address=address)


def _init_ray(what: str, **options: Any) -> None:
    # Serve sets this logger's level itself; the terminal gets our own lines instead.
    logging.getLogger("ray.serve").addFilter(lambda record: record.levelno >= logging.WARNING)
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SkimError(f"cannot {what}: {first_line}") from error


def _make_way(config: DeploymentConfig, name: str) -> None:
    """Stop what a killed run of `name` left. Raises SkimError if the cluster serves something else."""
    try:
        running = set(serve.status().applications)
        if foreign := running - ({name} - {APP_NAME}):
            others = ", ".join(sorted(foreign))
            raise SkimError(
                f"this Ray cluster serves {others} already: use that one's endpoint, or stop it (`serve shutdown`)"
            )
        if name in running:
            serve.delete(name)
        elif not _serve_runs():
            check_port(config.router.host, config.router.port)
    except SkimError:
        ray.shutdown()
        raise


def _serve_runs() -> bool:
    """Whether Serve is up in this cluster: then its own proxy holds the port."""
    return any(actor["namespace"] == "serve" for actor in ray.util.list_named_actors(all_namespaces=True))


def _check_resources(config: DeploymentConfig) -> None:
    """Raise SkimError for what no node of the cluster offers: Serve would wait for it without a word."""
    offered = ray.cluster_resources()
    for name, amount in needed_resources(config).items():
        if offered.get(name, 0.0) < amount:
            raise SkimError(
                f"the Ray cluster offers {offered.get(name, 0.0):g} of the resource {name} and this deployment needs "
                f"{amount:g}: start nodes with it (for example ray start --resources '{{\"{name}\": {amount:g}}}')"
            )
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, one in taken_by_one(config).items():
        if not any(all(node.get(resource, 0.0) >= amount for resource, amount in one.items()) for node in nodes):
            asked = ", ".join(f"{amount:g} {resource}" for resource, amount in one.items())
            raise SkimError(
                f"no node of the Ray cluster has all that one {name} replica takes ({asked}), and a replica with its "
                "tensor parallel ranks stays on one node: start a larger one, or lower what the replica takes"
            )


def _await_running(name: str, progress: Progress) -> None:
    told: set[str] = set()
    while True:
        application = serve.status().applications[name]
        for part, deployment in application.deployments.items():
            if deployment.status == "HEALTHY" and part not in told:
                told.add(part)
                progress(f"{part} is ready")
        if application.status == ApplicationStatus.RUNNING:
            return
        if _has_failed(application):
            messages = [d.message for d in application.deployments.values() if d.message] + [application.message]
            raise SkimError(f"the deployment did not start: {_reason(messages)}")
        time.sleep(_POLL_S)


def _has_failed(application: ApplicationStatusOverview) -> bool:
    """Not so where a replica that was running has died: Serve starts another one."""
    if application.status != ApplicationStatus.UNHEALTHY:
        return application.status == ApplicationStatus.DEPLOY_FAILED
    sick = [part for part in application.deployments.values() if part.status == "UNHEALTHY"]
    return not sick or any(part.status_trigger != "HEALTH_CHECK_FAILED" for part in sick)


def _reason(messages: list[str]) -> str:
    """The sentence inside Serve's report of a failed replica: the last exception's own message."""
    for message in messages:
        found = re.findall(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception))(?:\(|: )(.+)$", message, re.MULTILINE)
        if found:
            return found[-1][1].strip()
    return messages[-1].strip().splitlines()[-1] if messages[-1].strip() else "Ray Serve gave no reason; see its logs"


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def _stop(name: str) -> None:
    """Drain and stop our application, then leave Ray; a Ray that was started here ends with that."""
    if ray.is_initialized():
        # It waits a minute; on a cluster that goes on, Serve deletes what is left when its answers are finished.
        with suppress(TimeoutError):
            serve.delete(name)
        ray.shutdown()
