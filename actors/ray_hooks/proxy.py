"""What Serve's proxy hides: whether it drains."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from skim_common.symbols import Hook

HOOK = Hook(
    what="Serve's proxy: whether it drains",
    how="Ray: `GenericProxy._is_draining`, found through `RequestIdMiddleware._app`",
    until="Serve's proxy closes the connections of its clients when it drains",
    where=("actors/ray_hooks/proxy.py",),
    symbols=(
        ("ray.serve._private.proxy", "GenericProxy._is_draining", "self"),
        ("ray.serve._private.http_util", "RequestIdMiddleware._app", ""),
    ),
)


def draining_of(app: ASGIApp) -> Callable[[], bool]:
    """Whether Serve's proxy drains. app: the proxy, in middlewares of Serve's own."""
    proxy: Any = app
    while not hasattr(proxy, "_is_draining"):
        proxy = proxy._app
    drains: Callable[[], bool] = proxy._is_draining
    return drains
