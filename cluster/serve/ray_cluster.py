"""The Ray cluster under a deployment: it is started or joined, called with time limits, and drained."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, TypeVar

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.ray_hooks.ray_core import ON_LOOPBACK, dead_ray_process, init_on_loopback, is_on_loopback
from actors.ray_hooks.serve import forget_earlier_serve, init_with_own_loop, print_warnings_only
from skim_common.environment import with_environment
from skim_common.errors import SkimError
from skim_common.versions import check_version

T = TypeVar("T")
logger = logging.getLogger(__name__)

ANSWER_LIMIT_S = 10.0
DRAIN_LIMIT_S = 15.0
"""Maximum time that routers keep serving while their connections drain."""
QUIET_S = 1.0
"""Time without a request after which the connections count as drained."""
LOCAL_ADVICE = (
    "free memory, processors or disk of this machine, let this user write to HOME and /tmp (or set RAY_TMPDIR), and"
    " start again"
)


def start_ray(switches: Mapping[str, str], **options: Any) -> None:
    """Start a local Ray cluster. switches: environment variables of all its processes. options: of `ray.init`."""
    init_on_loopback(switches.items() >= ON_LOOPBACK.items())
    with with_environment(switches):
        _init_ray("start Ray on this machine", LOCAL_ADVICE, address="local", include_dashboard=False, **options)


def join_ray(address: str) -> None:
    """Connect to the Ray cluster at `address`, which may have been started by Skim. Raises SkimError."""
    with suppress(ConnectionError):  # no address: Ray says so
        init_on_loopback(is_on_loopback(address))
    _init_ray(f"reach the Ray cluster at {address}", "start it, or correct --address", address=address)


def _init_ray(what: str, advice: str, **options: Any) -> None:
    check_version("ray")
    forget_earlier_serve()
    print_warnings_only()
    with as_skim_error(f"cannot {what}", advice):
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


@contextmanager
def as_skim_error(what: str, advice: str) -> Iterator[None]:
    """Any error but SkimError becomes a SkimError: `what` failed, its reason, and what to do. Ray raises all kinds."""
    try:
        yield
    except SkimError:
        raise
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, RayTaskError) and cause.cause:
            cause = cause.cause
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__).rstrip(".")
        raise SkimError(f"{what}: {reason}; {advice}") from error


def call_with_timeout(call: Callable[[], T], timeout_s: float) -> T:
    """The result of `call`. Raises TimeoutError after `timeout_s`; the call goes on in a thread of its own.

    Ray's own calls wait for a dead head without a limit.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(timeout_s)


def ray_answers() -> bool:
    """Whether the connected Ray cluster still has a head that answers."""
    if not ray.is_initialized() or dead_ray_process():
        return False
    try:
        call_with_timeout(ray.nodes, ANSWER_LIMIT_S)
    except Exception:
        return False
    return True


def app_handle(name: str) -> DeploymentHandle:
    """The handle of the application `name`. Raises RayServeException if it does not run.

    In a pod the environment has `SERVE_SWITCHES`, with which a handle would need the event loop of its process.
    """
    handle = serve.get_app_handle(name)
    init_with_own_loop(handle)
    return handle


def drain_connections(name: str) -> None:
    """Routers close each connection with its next answer; until they are idle, but for `DRAIN_LIMIT_S` at most.

    name: of the Serve application, whose proxies answer 404 once it is deleted. Routers that do not reply are left
    alone.
    """
    deadline = time.monotonic() + DRAIN_LIMIT_S
    try:
        routers = app_handle(name)
        while any(routers.broadcast("drain").results(timeout_s=QUIET_S * 5)) and time.monotonic() < deadline:
            time.sleep(QUIET_S)
    except (RayError, RayServeException, TimeoutError) as error:
        logger.info("the routers could not send their clients away: %s", type(error).__name__)
