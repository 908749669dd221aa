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
from skim_common.symbols import RAY, symbols_of

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
SYMBOLS = symbols_of(module.HOOK for module in MODULES)


@functools.cache
def check_ray() -> None:
    """Raise SkimError naming the first symbol that the installed Ray lacks or has changed."""
    RAY.check(SYMBOLS)
