"""Starts Ray on this machine, or joins a Ray cluster. A failure is one sentence, after one more attempt, and leaves
nothing behind."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC
from typing import Any

import psutil
import ray
from ray.exceptions import RayTaskError

from actors.ray_hooks.loopback import ON_LOOPBACK, init_on_loopback, is_on_loopback
from actors.ray_hooks.serve_client import forget_earlier_serve
from actors.ray_hooks.serve_logger import print_warnings_only
from cluster.serve.status import failure_reason
from skim_common.environment import with_environment
from skim_common.errors import SkimError
from skim_common.versions import check_version

ATTEMPTS = 2
"""Ray's own limits for its start are short: on a loaded machine the second attempt often keeps them."""
STOP_LIMIT_S = 10.0
LOCAL_ADVICE = "free memory, processors or disk of this machine, and start again"
FULL = (ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE)
"""Errors of a file for which the machine, not the file, is the cause."""


def start_ray(switches: Mapping[str, str], **options: Any) -> None:
    """Start a local Ray cluster. switches: environment variables of all its processes. options: of `ray.init`."""
    init_on_loopback(switches.items() >= ON_LOOPBACK.items())
    local = {"address": "local", "include_dashboard": False, **options}
    with with_environment(switches):
        retried(lambda: _init_ray("start Ray on this machine", LOCAL_ADVICE, **local))


def join_ray(address: str) -> None:
    """Connect to the Ray cluster at `address`, which may have been started by Skim. Raises SkimError."""
    with suppress(ConnectionError):  # no address: Ray says so
        init_on_loopback(is_on_loopback(address))
    _init_ray(f"reach the Ray cluster at {address}", "start it, or correct --address", address=address)


def _init_ray(what: str, advice: str, **options: Any) -> None:
    check_version("ray")
    forget_earlier_serve()
    print_warnings_only()
    with told_in_one_sentence(f"cannot {what}", advice):
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


@contextmanager
def told_in_one_sentence(what: str, advice: str) -> Iterator[None]:
    """Any error but SkimError becomes a SkimError: `what` failed, its reason, and what to do. Ray raises all kinds.

    advice: for an error that says nothing more. Ray keeps its token in the user's home, and the rest in /tmp.
    """
    try:
        yield
    except SkimError:
        raise
    except Exception as error:
        raise SkimError(f"{what}: {_reason(error)}; {_other_advice(error) or advice}") from error


def _other_advice(error: Exception) -> str | None:
    """What to do about a file that may not be written, or a user without a home; None for other errors."""
    home = os.path.expanduser("~")
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "set HOME to a folder that this user may write to"
    if isinstance(error, OSError) and error.filename and error.errno not in FULL:
        variable = "HOME" if str(error.filename).startswith(home) else "RAY_TMPDIR"
        return f"let this user write there, or set {variable} to another folder"
    return None


def retried(start: Callable[[], None]) -> None:
    """Call `start`, which starts a local Ray; if it fails, end what it has started, and try once more."""
    for attempt in range(1, ATTEMPTS + 1):
        before = set(psutil.Process().children(recursive=True))
        try:
            start()
            return
        except SkimError as error:
            _end_children_since(before)
            # A wrong value stays wrong, and a folder closed.
            if attempt == ATTEMPTS or isinstance(error.__cause__, ValueError | PermissionError):
                raise
        except BaseException:  # Ctrl-C
            _end_children_since(before)
            raise


def _end_children_since(before: set[psutil.Process]) -> None:
    """Ray forgets the processes of a start that fails."""
    with suppress(Exception):
        ray.shutdown()
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(started, STOP_LIMIT_S)


def _reason(error: Exception) -> str:
    if isinstance(error, RayTaskError):
        return failure_reason([str(error)]).rstrip(".")
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
