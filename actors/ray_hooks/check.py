"""Compares the installed Ray with what the hooks need, once in each process that has them."""

import functools

from actors.ray_hooks import (
    broadcast,
    controller,
    deployment_version,
    handles,
    key_value_store,
    local_ray,
    loopback,
    proxy,
    replica_draining,
    request_router,
    serve_client,
    serve_logger,
)
from skim_common.symbols import RAY, Symbol

MODULES = (
    broadcast,
    controller,
    deployment_version,
    handles,
    key_value_store,
    local_ray,
    loopback,
    proxy,
    replica_draining,
    request_router,
    serve_client,
    serve_logger,
)
HOOKED: tuple[Symbol, ...] = tuple(symbol for module in MODULES for symbol in module.HOOKED)


@functools.cache
def check_ray() -> None:
    """Raise SkimError naming the first symbol that the installed Ray lacks or has changed."""
    RAY.check(HOOKED)
