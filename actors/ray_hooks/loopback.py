"""Ray's ports on this machine's loopback interface only: those of a Ray that Skim starts.

Ray listens on every address otherwise, with its metrics as well. It has this form for Windows and OSX, and an
environment variable for it, which also holds on Linux (Ray 2.60.0). Each process that joins such a Ray needs the same.
"""

import socket

from ray._common.network_utils import is_localhost
from ray._private import ray_constants, services

ON_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""Environment of each process of such a Ray, and of programs that join it. With 1, Ray listens on every address."""


def init_on_loopback(only: bool) -> None:
    """For the next `ray.init` of this process, which has read the environment variable already."""
    ray_constants.ENABLE_RAY_CLUSTER = not only


def is_on_loopback(address: str) -> bool:
    """Whether Ray's head listens there only. address: host:port, or "auto". ConnectionError: no Ray is there."""
    if address == "auto":
        address = services.get_ray_address_from_environment(address, None)
    host, _, port = address.rpartition(":")
    if not is_localhost(host):
        return False
    try:
        socket.create_connection((services.node_ip_address_from_perspective(), int(port)), timeout=1.0).close()
    except OSError:
        return True
    return False
