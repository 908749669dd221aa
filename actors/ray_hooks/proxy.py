"""What Serve's proxies hide: whether one drains, and the template of HAProxy's configuration."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

HOOKED = (
    ("ray.serve._private.proxy", "GenericProxy._is_draining", "self"),
    ("ray.serve._private.http_util", "RequestIdMiddleware._app", ""),
)
"""For `skim_common.symbols`. Not HAProxy's template: without it Serve's own proxy is used."""


def draining_of(app: ASGIApp) -> Callable[[], bool]:
    """Whether Serve's proxy drains. app: the proxy, in middlewares of Serve's own."""
    proxy: Any = app
    while not hasattr(proxy, "_is_draining"):
        proxy = proxy._app
    drains: Callable[[], bool] = proxy._is_draining
    return drains


def haproxy_template() -> str | None:
    """Ray's template of HAProxy's configuration; None if there is none."""
    try:
        from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE
    except ImportError:
        return None
    return str(HAPROXY_CONFIG_TEMPLATE)
