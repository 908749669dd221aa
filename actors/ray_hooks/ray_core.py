"""What Ray's core does not offer in public: its key-value store, the end of its head, and the address it listens on."""

import socket

import ray
from ray._common.network_utils import is_localhost
from ray._private import ray_constants, services, worker
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put

ON_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""Environment of each process of a Ray that Skim starts, and of programs that join it. With 1, Ray listens on every
address, with its metrics as well."""


def kv_get(key: str) -> bytes | None:
    """A value of Ray's key-value store, which lives as long as Ray's head. Outside Ray the store is empty."""
    return _internal_kv_get(key) if ray.is_initialized() else None


def kv_put(key: str, value: str) -> None:
    if ray.is_initialized():
        _internal_kv_put(key, value, overwrite=True)


def kv_delete(key: str) -> None:
    _internal_kv_del(key)


def kv_keys(prefix: str) -> list[str]:
    return [key.decode() for key in _internal_kv_list(prefix)] if ray.is_initialized() else []


def dead_ray_process() -> str | None:
    """The name of a process that has died of the Ray that was started here; None if all live, or for another Ray. Ray's
    own calls wait for a dead head without a limit."""
    node = worker._global_node
    if node is None or not node.is_head():
        return None
    return next((kind for kind, _ in node.dead_processes()), None)


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
