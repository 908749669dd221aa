"""What Serve's proxies hide: whether one drains, and the template of HAProxy's configuration."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from skim_common.symbols import Hook

HOOK = Hook(
    what="Serve's proxies: one that drains, and HAProxy's configuration",
    how=(
        "Ray: `GenericProxy._is_draining`, found through `RequestIdMiddleware._app`; text only: five regular"
        " expressions on Ray's template of HAProxy's configuration, and without a match Serve's own proxy is used"
    ),
    until=(
        "Serve's proxy closes the connections of its clients when it drains; Ray's template has this, loopback"
        " statistics, no splicing, `timeout http-request`, and a 503 before the first router"
    ),
    where=("actors/ray_hooks/proxy.py", "cluster/serve/proxy/haproxy_config.py"),
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


def haproxy_template() -> str | None:
    """Ray's template of HAProxy's configuration; None if there is none."""
    try:
        from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE
    except ImportError:
        return None
    return str(HAPROXY_CONFIG_TEMPLATE)
