"""`skim status`: one line per pool and for the router, with the reason if it is down."""

import ray

from cluster.commands.output import print_line
from cluster.serve.ray_cluster import call_with_timeout, join_ray
from cluster.serve.status import PartStatus, current_parts
from skim_common.errors import SkimError

LIMIT_S = 20.0
"""How long Serve may take to answer."""


def run_status(address: str) -> bool:
    """Print one line per part. Returns whether no part is down. Raises SkimError if no deployment runs."""
    join_ray(address)
    try:
        parts = running_parts(address)
    finally:
        ray.shutdown()
    for part in parts:
        print_line(part.line)
    return not any(part.reason for part in parts)


def running_parts(address: str) -> list[PartStatus]:
    """The parts of the deployment on the connected cluster. Raises SkimError if none runs or Serve does not answer."""
    try:
        parts = call_with_timeout(current_parts, LIMIT_S)
    except TimeoutError:
        raise SkimError(
            f"Serve's controller on the Ray cluster at {address} did not answer in {LIMIT_S:g} s; Ray restarts a"
            " controller that dies, so try again in a moment"
        ) from None
    if parts is None:
        raise SkimError(f"no deployment of Skim runs on the Ray cluster at {address}; start one with `skim deploy`")
    return parts
