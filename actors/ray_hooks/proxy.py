"""What Serve's proxy hides: whether it drains."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp


def draining_of(app: ASGIApp) -> Callable[[], bool]:
    """Whether Serve's proxy drains. app: the proxy, in middlewares of Serve's own."""
    proxy: Any = app
    while not hasattr(proxy, "_is_draining"):
        proxy = proxy._app
    drains: Callable[[], bool] = proxy._is_draining
    return drains
