"""What Ray and Serve raise while a deployment starts: one sentence, one more attempt, and nothing left behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import ray
from ray.exceptions import RayTaskError

from cluster.serve.status import failure_reason
from skim_common.errors import SkimError

ATTEMPTS = 2
"""Ray's own limits for its start are short: on a loaded machine the second attempt often keeps them."""
STOP_LIMIT_S = 10.0


@contextmanager
def told_in_one_sentence(what: str, advice: str) -> Iterator[None]:
    """Any error but SkimError becomes a SkimError: `what` failed, its reason, and what to do. Ray raises all kinds."""
    try:
        yield
    except SkimError:
        raise
    except Exception as error:
        raise SkimError(f"{what}: {_reason(error)}; {advice}") from error


def retried(start: Callable[[], None]) -> None:
    """Call `start`, which starts a local Ray; if it fails, end what it has started, and try once more."""
    for attempt in range(1, ATTEMPTS + 1):
        before = set(psutil.Process().children(recursive=True))
        try:
            start()
            return
        except SkimError as error:
            _end_children_since(before)
            if attempt == ATTEMPTS or isinstance(error.__cause__, ValueError):  # a wrong value stays wrong
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
