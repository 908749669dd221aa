"""Ray's key-value store, which lives as long as Ray's head; on KubeRay with Redis, beyond that.

Ray has no public one. Use it only in a process that is connected to Ray.
"""

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put


def get(key: str) -> bytes | None:
    value: bytes | None = _internal_kv_get(key)
    return value


def put(key: str, value: str) -> None:
    _internal_kv_put(key, value, overwrite=True)


def delete(key: str) -> None:
    _internal_kv_del(key)


def keys(prefix: str) -> list[str]:
    return [key.decode() for key in _internal_kv_list(prefix)]
