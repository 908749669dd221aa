"""What Serve does not offer in public: its controller, its client, options of handles and deployments, its proxy and
its logger."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.context import ReplicaContext, _disconnect, _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

LOGGER = "ray.serve"


def this_replica() -> ReplicaContext | None:
    """The replica that this process is; None outside Serve."""
    try:
        return serve.get_replica_context()
    except RayServeException:
        return None


async def replies_of_all(handle: DeploymentHandle, method: str, *args: Any, timeout_s: float) -> list[Any]:
    """What the replicas that run reply, each within `timeout_s`, or the errors in place of replies. (Serve's
    `results_async` loses all replies if one is late.) Raises RayError, TimeoutError and RayServeException if no replica
    can be asked.
    """
    response = handle.broadcast(method, *args)
    async with asyncio.timeout(timeout_s):
        results = await response._fetch_replica_results_async()
    waits = (asyncio.wait_for(result.get_async(), timeout_s) for result in results)
    return await asyncio.gather(*waits, return_exceptions=True)


def actor_lives(name: str) -> bool:
    """Whether Serve has an actor of this name, such as a replica's."""
    try:
        ray.get_actor(name, SERVE_NAMESPACE)
    except ValueError:
        return False
    return True


class Controller:
    """Asks Serve's controller for what its public `status` lacks: the number of replicas that a deployment should have.
    Its actor's name and handle stay the same when Ray restarts it."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def deployments(self, app: str) -> Mapping[str, Mapping[str, Any]]:
        """Fields of ray.serve.schema.DeploymentDetails by deployment. RayError, ValueError: there is no controller."""
        if self._actor is None:
            # In a thread: it waits for Ray's head.
            self._actor = await asyncio.to_thread(ray.get_actor, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        details = await self._actor.get_serve_instance_details.remote()
        deployments: Mapping[str, Mapping[str, Any]] = details["applications"].get(app, {}).get("deployments", {})
        return deployments


def set_version(deployment: serve.Deployment, version: str) -> None:
    """Call it before `bind`, which copies the deployment. Serve keeps replicas of the same version.

    For an application that is run from Python, Serve's own version is random: any change would restart every engine.
    """
    deployment._version = version


def deployment_name(application: Application) -> Any:
    """The name of the deployment that the application binds."""
    return application._bound_deployment.name


def streaming_bytes(handle: DeploymentHandle) -> DeploymentHandle:
    """The handle for streams of bytes: over Serve's gRPC, not as Ray's object references, which do not help bytes that
    are read once. A dead replica is still a RayActorError; other failures are gRPC errors.
    """
    return handle.options(stream=True, _by_reference=False)


def init_with_own_loop(handle: DeploymentHandle) -> None:
    """Make the handle fit for a process without an event loop. One that has been used keeps its loop."""
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)


def forget_earlier_serve() -> None:
    """Drop what Serve keeps in this process of the Serve of an earlier Ray. It keeps its client by the id of Ray's job,
    and the first job of each Ray has the same id; the public `serve.shutdown` would wait for the dead controller."""
    _disconnect()


def running_http_options() -> Any:
    """The ray.serve.config.HTTPOptions of the Serve that runs in the connected Ray cluster; None if none does."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else client.http_config


def draining_of(app: ASGIApp) -> Any:
    """A function that says whether Serve's proxy drains. app: the proxy, in middlewares of Serve's own."""
    proxy: Any = app
    while not hasattr(proxy, "_is_draining"):
        proxy = proxy._app
    return proxy._is_draining


@contextmanager
def kept_log_file() -> Iterator[None]:
    """Serve's log file stays in use although something that is imported in this context configures logging.

    vllm.logger calls `logging.config.dictConfig`, which closes every handler of the process. Without the target of its
    MemoryHandler, Serve logs nothing, and its controller, when it restarts, stops a healthy replica.
    """
    buffers = [h for h in logging.getLogger(LOGGER).handlers if isinstance(h, MemoryHandler)]
    targets = [(buffer, buffer.target) for buffer in buffers]
    try:
        yield
    finally:
        for buffer, target in targets:
            if buffer.target is None:
                buffer.setTarget(target)


def print_warnings_only() -> None:
    """Serve sets its logger's level itself, so a filter is needed. The terminal shows our own progress lines."""
    logging.getLogger(LOGGER).addFilter(is_for_the_user)


def is_for_the_user(record: logging.LogRecord) -> bool:
    """A router that imports vLLM answers Serve's question for its queue late; the deployment starts all the same."""
    return record.levelno >= logging.WARNING and "queue length" not in record.getMessage()
